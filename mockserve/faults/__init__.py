"""Faults on purpose, for clients, gateways and dashboards that must cope with them.

`draw.py` says which request gets which, `shaping.py` does it to replies, `engine.py` to the engine. What there is and
how often it happens are settings: `mockserve/options/faults.py`.
"""
