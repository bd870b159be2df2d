"""`blis bench serve`: load on a server, as `vllm bench serve` puts it, with its table and its result file.

Read `options.py`, then `load.py` (when each request is sent, and how) and `figures.py` (what came of them).
"""
