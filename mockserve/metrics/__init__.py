"""The server's metrics, and the Prometheus page.

`engine.py` counts requests and steps as vLLM does; `families.py` maps counters to vLLM's metric names.
"""
