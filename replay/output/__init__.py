"""The output of a run: files, and a summary on standard output.

Read `report.py` first, then `findings.py` (all figures, computed once) and their writers: `metrics.py`, `table.py`,
`figures.py` and `trace.py`.
"""
