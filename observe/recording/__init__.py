"""The rows of a trace, written as requests end."""
