"""The program `llm-d-inference-sim`: that project's command line in front of this server.

`options.py` has the flags, `mapping.py` their meaning for this server.
"""
