"""`blis calibrate --watch`: the last minutes of a live server against a prediction of them.

Reading order: `readings.py` (metrics pages and their sources), `prediction.py` (simulations of the requests of the
readings), `drift.py` (comparison and report), `loop.py` (the loop of comparisons).
"""
