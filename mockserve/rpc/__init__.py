"""vLLM's gRPC interface, in place of HTTP."""
