"""A run in virtual time, and the record of what each request experienced in it.

Read `simulate.py` first, then `measure.py` (what the client of one request sees) and `record.py` (that of all of them).
"""
