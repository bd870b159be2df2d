"""From tokens to what a client reads: choices, events of a stream, or one JSON object; all count the same tokens.

`generation.py` has a choice before its first token, `choice_writer.py` turns its tokens into pieces of text, and
`choices.py` delivers these, event by event or in one JSON object.
"""
