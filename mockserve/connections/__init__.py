"""What concerns a connection, whatever is asked on it: when its bytes came, TLS, limits, the headers of all replies."""
