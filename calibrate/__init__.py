"""How well a simulation predicts a recording, request by request and over all.

Reading order: `compare.py` (which rows are compared, and how), `calibration.py` (a whole comparison), `report.py` (what
is printed), `command.py` (`blis calibrate`).

Two sets of rules exist side by side. The plain ones count only what can be compared. Those called `compat` give the
numbers of the original tool, for comparison with reports it has made.
"""
