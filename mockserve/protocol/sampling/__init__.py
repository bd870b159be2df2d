"""Options of a request that generates, beside its prompt, for all interfaces."""
