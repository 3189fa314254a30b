"""The processes: supervisor, broker process, and the ASGI servers it runs on."""
