"""A recorded trace through the simulated engine, in virtual time.

Reading order: `arrivals.py` (rows to requests), `simulate.py` (the run), `measure.py` (what each request experienced),
`outputs.py` (the files), `command.py` (`blis replay`).
"""
