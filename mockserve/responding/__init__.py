"""Conversion of planned replies to HTTP responses: submission, sending, and release when the client disconnects."""
