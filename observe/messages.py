"""Messages of a running command on standard error; standard output is kept for the result."""

import sys
from contextlib import suppress


def say(text: str) -> None:
    """One line, or some. A log that takes no more, or a reader that has gone, is no reason to stop measuring."""
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print one warning line."""
    say(f"warning: {text}")
