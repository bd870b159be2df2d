"""The errors of the xgrammar library."""

import time


class XgrammarError(ValueError):
    """A refusal of the xgrammar library.

    Most messages name the C++ source line that found the problem, after the local time; `place` is that line. Errors
    that C++ libraries below xgrammar raise have neither.
    """

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = place

    @property
    def message(self) -> str:
        """The text as the library words it, stamped with the current local time."""
        if self.place is None:
            return self.reason
        return f"[{time.strftime('%H:%M:%S')}] /project/cpp/{self.place}: {self.reason}\n"
