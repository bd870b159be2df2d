"""vLLM's HTTP interface as pure functions: bodies to values, and values to bodies. No I/O.

Each family of interfaces has a folder or file. `reading` and `sampling.py` are common to requests, `bodies.py` is
common to replies.
"""
