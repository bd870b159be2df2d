"""A load client for OpenAI-compatible servers that records what was sent and when each piece of an answer came.

Read `schedule.py` (what to send when), then `dispatch.py` (sending it on time) and `reply.py` (what comes back).
"""
