"""KV blocks outside of the engine: their names, their events over ZeroMQ, and the handover of a prompt.

Read `naming.py` first; `events.py` needs the extra `kv-events`.
"""
