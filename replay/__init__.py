"""Recorded traces and synthetic workloads through the simulated engine, in virtual time.

Reading order: `arrivals.py` (rows of a trace to requests), `simulate.py` (the run), `measure.py` (what each request
experienced), `outputs.py` (the files), `command.py` (`blis replay`). Then `synthetic.py` (a generated workload to
requests), `sessions.py` (those that wait for answers) and `run_command.py` (`blis run`).
"""
