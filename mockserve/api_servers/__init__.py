"""One server in several processes: the engines in one, and others that read requests and write replies.

`serving.py` starts them. `engine_side.py` and `answering_process.py` are the two ends of their conversation, and
`channel.py` has the messages.
"""
