"""Learns the coefficients of the fitted latency model from recordings, by simulating them again and again.

Reading order: `recording.py` (what was measured, and what token times show), `terms.py` (what is learned, and what
physics expects), `estimate.py` (simulated runs, and better coefficients from them, with a speed for each part of a
recording), `learn.py` (rounds of both, and their score), `coefficients_file.py` and `command.py` (`blis fit`).
"""
