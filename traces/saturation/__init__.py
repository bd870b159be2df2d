"""Was the server keeping up? Labels for a run, from when its requests arrived and were answered.

Read `timeline.py` first, then `verdicts.py` (what every detector says after every event) and one detector, such as
`threshold.py`. `labels.py` makes of them one label for the run, `report.py` the file with all of them.
"""
