"""Learns the coefficients of the fitted latency model from recordings, by simulating them again and again.

Reading order: `recording.py` (what was measured; `steps.py` and `stretches.py`: what token times show), `terms.py`
(what is learned, and what physics expects), `trial.py` (one simulated run, and how its latencies depend on each
coefficient; `shapes.py` has what its steps held), `estimate.py` (better coefficients from trials, with a speed for each
part of a recording: `spans.py`), `learn.py` (rounds of both), `score.py` (how good they are), `coefficients_file.py`
and `command.py` (`blis fit`).
"""
