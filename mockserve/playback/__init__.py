"""Recorded and hand-written replies: their files, the search for the one that fits a request, a journal of requests."""
