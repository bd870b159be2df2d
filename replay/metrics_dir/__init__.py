"""The folder of `--metrics-dir`: a run's requests, batches and operations as tables, timelines and pictures.

`tables.py` depends on no run, so another command can write equal files. `observing.py` connects a run to the recorders,
and `recorder.py` writes the folder.
"""
