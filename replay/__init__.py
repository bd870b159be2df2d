"""Recorded traces and synthetic workloads through the simulated engine, in virtual time.

Reading order: `arrivals.py` (rows of a trace and generated requests to requests with arrival times), `simulation/`
(the run, and what each request experienced), `closed_loop.py` (requests that wait for replies), `analysis/` and
`output/` (reports and files). `command.py` is `blis replay`, `run_command.py` is `blis run`.
"""
