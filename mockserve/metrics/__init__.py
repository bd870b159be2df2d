"""What is counted, and the metrics page that shows it.

`engine.py` counts what vLLM counts about requests and steps, `families.py` says which of its names each figure has.
"""
