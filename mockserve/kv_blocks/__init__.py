"""KV blocks as others know them: their names, the events that tell of them over ZeroMQ, how a prompt is handed over.

Read `naming.py` first; `event_publisher.py` needs the extra `kv-events`.
"""
