"""Was the server keeping up? Labels for a run, from when its requests arrived and were answered.

`detectors.py` has the verdict of each detector after every event of a run.
"""
