"""The folder of `--metrics-dir`: a run's requests, batches and operations as tables, timelines and pictures.

`request_rows.py`, `config_file.py` and `tables.py` depend on nothing of a run, so another command can write the same
files: make a `RequestFacts` for each request and give `request_row(facts)` to a `CsvTable` with `REQUEST_COLUMNS`.
"""
