"""The output of a run: files, and a summary on standard output.

Read `report.py` first, then `findings.py` (all that is said, worked out once) and what says it: `metrics.py`,
`breakdown_json.py`, `summary.py` and `trace.py`.
"""
