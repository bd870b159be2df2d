"""How many requests are being answered, and word of it when none is any more."""

import asyncio
from contextlib import suppress


class OpenReplies:
    """Each reply is counted within a `with` block, and so is the planning of one that takes several turns."""

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
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a reply that was planned begins as soon as its plan ends
                    self._idle.clear()
                    await self._idle.wait()
