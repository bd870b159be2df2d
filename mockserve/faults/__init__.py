"""Faults on purpose, for clients, gateways and dashboards that must cope with them.

`shaping.py` draws the fault of each request and shapes its reply, `engine.py` acts on engines. The kinds of faults and
their rates are settings: `mockserve/options/faults.py`.
"""
