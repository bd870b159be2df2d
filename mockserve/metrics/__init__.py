"""The server's metrics, and the Prometheus page.

`counters.py` counts requests and steps as vLLM does; `families.py` maps counters to vLLM's metric names.
"""
