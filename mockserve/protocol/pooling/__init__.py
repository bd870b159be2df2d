"""Requests to pooling models, and their replies: vectors, classes, scores."""
