"""The Python client: a small, typed API over HTTP, for threads (`Client`) and for asyncio (`AsyncClient`)."""
