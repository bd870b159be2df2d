"""Learns the coefficients of the fitted latency model from recordings, by simulating them again and again.

Reading order: `recording.py` (what was measured; `steps.py`: what token times show), `terms.py` (what is learned, and
what physics expects), `trial.py` (one simulated run, and how its latencies depend on each coefficient), `estimate.py`
(better coefficients from trials, with a speed for each part of a recording), `learn.py` (rounds of both, and their
score), `coefficients_file.py` and `command.py` (`blis fit`).
"""
