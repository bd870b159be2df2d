"""The program `llm-d-inference-sim`: that project's command line in front of this server."""
