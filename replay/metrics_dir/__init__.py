"""The folder of `--metrics-dir`: a run's requests, batches and operations as tables, timelines and pictures.

`tables.py` depends on nothing of a run, so another command can write the same files. `observing.py` is where a run
comes in, `recorder.py` what writes.
"""
