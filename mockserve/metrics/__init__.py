"""The metrics of the server, and the page that shows them.

`engine.py` counts requests and steps as vLLM does; `families.py` gives each figure vLLM's name.
"""
