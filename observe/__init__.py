"""A load client for OpenAI-compatible servers that records what was sent and when each piece of an answer came.

Read `requests.py` (what to send when, and sending it on time), then `responses.py` (what comes back).
`measurement.py` is a run from its first connection to its last row.
"""
