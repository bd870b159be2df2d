"""Costly work beside the event loop, on threads and in worker processes, within limits of time and memory."""
