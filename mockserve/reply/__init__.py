"""Conversion of tokens to replies: choices, events of a stream, or one JSON object, with equal token counts.

`reply.py` has the plan of a reply and its choices in the engine. `stream.py` sends them as events or whole.
`choice_writer.py` and `chat_writer.py` turn the tokens of a choice into pieces of text.
"""
