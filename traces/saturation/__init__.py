"""Labels of a run that state whether the server kept up, from the times of arrivals and answers.

`detectors.py` has the verdict of each detector after every event of a run.
"""
