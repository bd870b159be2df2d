"""vLLM's HTTP interface as pure functions: bodies in, values out; values in, bodies out. No I/O."""
