"""vLLM's HTTP interface as pure functions: bodies in, values out; values in, bodies out. No I/O.

A folder or file for each family of interfaces; `reading` and `sampling.py` have what their requests have in common,
`bodies.py` what their replies have.
"""
