"""Was the server keeping up? Labels for a run, from when its requests arrived and were answered.

Read `timeline.py` first, then `verdicts.py` (the verdict of a detector after every event) and one detector, such as
`threshold.py`. `labels.py` reduces the verdicts to one label for the run, `report.py` writes the file with all of them.
"""
