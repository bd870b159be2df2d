"""KV blocks outside of the engine: block hashes, KV events over ZeroMQ, and KV transfer.

Read `naming.py` first; `events.py` needs the extra `kv-events`.
"""
