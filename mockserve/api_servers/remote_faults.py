"""Faults as a process shows and changes them whose engines are in another process."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from blis_sim.options import OptionError
from mockserve.api_servers.channel import ChangeFaults, FaultsChanged, FromAnswering, State
from mockserve.faults.engine import Changes
from mockserve.options.faults import FaultSettings, TimedFault


class RemoteFaults:
    """Shows the faults of the engines as of a moment ago, and asks their process for changes in all processes."""

    def __init__(self, send: Callable[[FromAnswering], None]) -> None:
        self._send = send
        self._active: tuple[str, ...] = ()
        self._questions = itertools.count()
        self._asked: dict[int, asyncio.Future[str]] = {}

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Leave the faults of the command line to the process of the engines."""

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Set the figures of faults, start and end faults of engines. Raises OptionError with nothing changed."""
        question = next(self._questions)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[question] = answer
        self._send(ChangeFaults(question, settings, changes))
        try:
            problem = await answer
        finally:
            del self._asked[question]
        if problem:
            raise OptionError(problem)

    def close(self) -> None:
        """Nothing is planned here."""

    # --- messages from the engines ---

    def state(self, message: State) -> None:
        """Faults of the engines, as last reported."""
        self._active = message.engine_faults

    def changed(self, message: FaultsChanged) -> None:
        """A change has been made, or refused."""
        answer = self._asked.get(message.question)
        if answer is not None and not answer.done():
            answer.set_result(message.problem)
