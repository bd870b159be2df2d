"""Requests and their send times, independent of the server: schedules, lengths, prompts, bodies."""
