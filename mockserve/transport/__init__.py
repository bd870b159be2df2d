"""Connections, whatever their requests are: arrival of bytes, TLS, limits, the headers of all replies."""
