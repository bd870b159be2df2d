"""`blis bench throughput` and `blis bench latency`: what vLLM's offline benchmarks measure, on the simulated engine.

Nothing is waited for: the engine runs in virtual time, and the seconds that are printed are its own.
"""
