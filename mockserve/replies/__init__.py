"""From tokens to what a client reads: choices, events of a stream, or one JSON object; both count the same tokens.

`generation.py` says what will be said and asked of the engine, `choice_writer.py` what tokens look like, `streamed.py`
and `collected.py` where they go when their time has come.
"""
