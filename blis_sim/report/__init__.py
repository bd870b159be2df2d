"""Answers of commands in every format. Read `report.py` first, then `tables.py`, `pages.py` and `figures.py`."""
