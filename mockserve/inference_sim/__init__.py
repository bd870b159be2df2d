"""The program `llm-d-inference-sim`: the command line of llm-d-inference-sim for this server."""
