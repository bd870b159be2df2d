"""Parses a reply from its bytes as they arrive: events, usage, text."""
