"""Runs whose requests are sent when the replies before them allow it, not at instants known up front.

`closed_loop.py` drives those that wait for a reply: `sessions.py` has the ones of a workload, `rounds.py` those of a
trace. `reissue.py` sends a trace again under its client's cap on requests at once.
"""
