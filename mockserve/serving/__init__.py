"""The served model, shared by all routes: limits, adapters, instances, pausing and stopping.

Read `service.py` first.
"""
