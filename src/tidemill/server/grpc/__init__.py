"""The gRPC endpoint: RocketMQ's MessagingService."""
