"""Faults on purpose, for clients, gateways and dashboards that must cope with them.

`kinds.py` lists them, `settings.py` says how often and how long, `inject.py` does it to replies, `engine_faults.py` to
the engine.
"""
