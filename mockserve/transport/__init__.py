"""Connections independent of routes: arrival times, TLS, limits, and headers of all replies."""
