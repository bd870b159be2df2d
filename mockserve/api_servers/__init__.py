"""A server in several processes: one process with the engines, and API server processes for requests and replies.

`serving.py` starts the processes. `engine_side.py` and `answering_process.py` are the two ends of the communication,
and `channel.py` has the messages.
"""
