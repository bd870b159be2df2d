"""Conversion of tokens to replies: choices, events of a stream, or one JSON object, with equal token counts.

`choice_writer.py` turns the tokens of a choice into pieces of text, and `choices.py` delivers the pieces, event by
event or in one JSON object.
"""
