"""A run in virtual time, and the record of what each request experienced in it.

Read `simulate.py` first, then `record.py` (the latencies of one request, and of all).
"""
