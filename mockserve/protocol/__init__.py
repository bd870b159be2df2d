"""vLLM's HTTP interface as pure functions: bodies in, values out; values in, bodies out. No I/O.

A folder for each family of interfaces; `reading` and `asked` have what their requests have in common, `bodies.py` what
their replies have.
"""
