"""`blis calibrate --watch`: the last minutes of a live server against a prediction of them.

Reading order: `readings.py` (what a metrics page says), `sources.py` (where pages come from), `workload.py` (requests
as readings show them), `prediction.py` (what these would have met), `drift.py` (whether that fits), `pages.py` (what is
written), `loop.py` (the minutes).
"""
