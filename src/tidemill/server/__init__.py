"""The endpoints (gRPC for RocketMQ 5 clients, HTTP, Flight, Unix socket) and the process that serves them."""
