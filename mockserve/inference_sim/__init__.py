"""The program `llm-d-inference-sim`: that project's command line in front of this server.

`options.py` is its table of flags, `mapping.py` what they mean here.
"""
