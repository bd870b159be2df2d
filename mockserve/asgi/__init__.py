"""ASGI middleware of users around all that the server does: vLLM's `--middleware`."""
