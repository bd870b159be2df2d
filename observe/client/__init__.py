"""Connections to the server, and one exchange after the other on each of them."""
