"""Many simulations that differ in their settings: which ones, how one is computed, and all of them on many processes.

Read `plan.py` (a command and what varies), then `simulate.py` (one point) and `workers.py` (all points, by default on
as many processes as `cores.py` counts cores).
"""
