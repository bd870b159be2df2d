"""A run in virtual time, and the record of what each request experienced in it.

Read `simulate.py` first, then `measure.py` (the latencies of one request) and `record.py` (the latencies of all).
"""
