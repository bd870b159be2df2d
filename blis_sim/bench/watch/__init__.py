"""`blis calibrate --watch`: the last minutes of a live server against a prediction of them.

Reading order: `readings.py` (what a metrics page says, and where pages come from), `prediction.py` (what the requests
that readings show would have met), `drift.py` (whether that fits, and what is written of it), `loop.py` (the minutes).
"""
