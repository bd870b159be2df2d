"""Fault injection, to test clients, gateways and dashboards.

`shaping.py` draws the fault of each request and shapes its reply, `engine.py` applies engine faults. The kinds of
faults and their rates are settings in `mockserve/options/faults.py`.
"""
