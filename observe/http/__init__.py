"""HTTP/1.1 without I/O: the bytes of a request, the head and the body of a response, and trust in TLS certificates."""
