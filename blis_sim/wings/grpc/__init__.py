"""vLLM's gRPC interface, at a port of its own or at the one of HTTP."""
