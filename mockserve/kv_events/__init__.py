"""KV-cache events over ZeroMQ, as vLLM publishes them: what an indexer needs to know which server holds which prefix.

Read `publisher.py` first. Needs the extra `kv-events`.
"""
