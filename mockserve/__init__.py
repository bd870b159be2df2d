"""A server that looks like vLLM and is timed by the simulated engine.

Read `realtime.py` first: it alone knows the wall clock. A request goes from `routes` through `protocol` (pure parsing)
and `generation` (what the engine is asked, what the client will read) to the driver, and its tokens go to `replies`.
"""
