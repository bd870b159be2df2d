"""`blis bench`: the commands of `vllm bench`, with their flags, labels and result files, on this product's own parts.

`serve/` puts load on a server through the client of `observe`. `offline/` answers what `vllm bench throughput` and
`vllm bench latency` measure, on the simulated engine in virtual time. `datasets.py` makes the requests of both.
"""
