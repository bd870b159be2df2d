"""Requests to models that pool, and their replies: vectors, classes, scores."""
