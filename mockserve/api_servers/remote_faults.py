"""Fault control of an API server process, whose engines are in another process."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from blis_sim.options import OptionError
from mockserve.api_servers.channel import ChangeFaults, FaultsResult, FromApiServer, State
from mockserve.faults.engine import Changes
from mockserve.options.faults import FaultSettings, TimedFault


class RemoteFaults:
    """Shows the latest reported engine faults, and sends changes for all processes to the engine process."""

    def __init__(self, send: Callable[[FromApiServer], None]) -> None:
        self._send = send
        self._active: tuple[str, ...] = ()
        self._query_ids = itertools.count()
        self._pending: dict[int, asyncio.Future[str]] = {}

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Do nothing: the engine process plans the faults of the command line."""

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        query_id = next(self._query_ids)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[query_id] = answer
        self._send(ChangeFaults(query_id, settings, changes))
        try:
            problem = await answer
        finally:
            del self._pending[query_id]
        if problem:
            raise OptionError(problem)

    def close(self) -> None:
        """Do nothing: no fault is planned in this process."""

    # --- messages from the engine process ---

    def state(self, message: State) -> None:
        """Store the reported engine faults."""
        self._active = message.engine_faults

    def changed(self, message: FaultsResult) -> None:
        """Resolve the wait for a change."""
        answer = self._pending.get(message.query_id)
        if answer is not None and not answer.done():
            answer.set_result(message.problem)
