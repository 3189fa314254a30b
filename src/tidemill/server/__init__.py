"""The doors: gRPC for RocketMQ 5 clients, HTTP for people and machines; and the process that serves them."""
