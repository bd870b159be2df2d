"""The served model as all routes share it: its limits, adapters and instances, and how it is paused and stopped.

Read `service.py` first.
"""
