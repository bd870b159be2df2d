"""Figures of a run: a few numbers per request, and statistics, summaries and pictures of them."""
