"""Names of the interruptions of an engine that are no pauses, as a server publishes and a recording keeps them."""

ABORT, RESET = "abort", "reset"
"""The end of all requests, and an emptied prefix cache."""
