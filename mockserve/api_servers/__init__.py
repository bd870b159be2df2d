"""A server in several processes: one process with the engines, and API server processes for requests and replies.

`engine_process.py` and `api_server.py` are the two ends of the communication, and `channel.py` has the calls.
"""
