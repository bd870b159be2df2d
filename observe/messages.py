"""What is said to people while a command runs. Standard output is kept for the result."""

import sys


def say(text: str) -> None:
    """One line, or some."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """One line that someone should read."""
    say(f"warning: {text}")
