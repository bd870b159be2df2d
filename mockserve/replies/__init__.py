"""From tokens to what a client reads: choices, events of a stream, or one JSON object; all count the same tokens.

`choice_writer.py` turns the tokens of a choice into pieces of text, and `choices.py` delivers these, event by event or
in one JSON object.
"""
