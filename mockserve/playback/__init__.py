"""Recorded and hand-written replies: their files, the search for the reply to a request, a journal of requests."""
