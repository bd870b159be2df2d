"""From tokens to what a client reads: choices, events of a stream, or one JSON object; both count the same tokens.

`generation.py` is one choice before its first token, `choice_writer.py` says what its tokens look like, `streamed.py`
and `collected.py` where they go when their time has come.
"""
