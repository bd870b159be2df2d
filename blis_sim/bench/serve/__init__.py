"""`blis bench serve`: load on a server, as `vllm bench serve` puts it, with its table and its result file.

Read `options.py`, then `load.py` (send times and requests) and `figures.py` (results).
"""
