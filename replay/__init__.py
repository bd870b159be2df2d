"""Recorded traces and synthetic workloads through the simulated engine, in virtual time.

Reading order: `arrivals/` (rows of a trace and generated requests to requests with arrival times), `running/` (the run,
and what each request experienced), `loops/` (requests that wait for replies), `figures/` and `output/` (what is said of
it). `command.py` is `blis replay`, `run_command.py` is `blis run`.
"""
