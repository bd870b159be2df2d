"""`blis bench serve`: load on a server, as `vllm bench serve` puts it, with its table and its result file.

Read `options.py`, then `arrivals.py` (when each request is due), `load.py` (sending them) and `figures.py` (what came
of them).
"""
