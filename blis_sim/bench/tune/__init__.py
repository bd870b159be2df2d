"""`blis bench tune`: the engine settings, and the request rate, at which most is served within latency limits."""
