"""How many requests are being answered, and word of it when none is any more."""

import asyncio
from contextlib import suppress


class OpenReplies:
    """Each reply is counted within a `with` block."""

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_error: object) -> None:
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Return when there is none any more, or when the time is up."""
        self._idle.clear()
        if self.number:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_s)
