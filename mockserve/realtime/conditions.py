"""Who waits for something to be so, and is told when it is."""

import asyncio
from collections.abc import Callable


class Conditions:
    """Looked at when something may have changed."""

    def __init__(self) -> None:
        self._awaited: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when a look finds something to be so, at once if it is."""
        if not is_so():
            found = asyncio.get_running_loop().create_future()
            self._awaited.append((is_so, found))
            await found

    def look(self) -> None:
        """Wake those whose condition holds by now; who was cancelled waits no more."""
        for entry in list(self._awaited):
            is_so, found = entry
            if found.done() or is_so():
                self._awaited.remove(entry)
                if not found.done():
                    found.set_result(None)
