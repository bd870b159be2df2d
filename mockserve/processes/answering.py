"""The processes that answer, as the one that started them sees them."""

import asyncio
import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

from blis_sim.options import OptionError
from mockserve.processes.answering_process import Assignment, answer_until_told
from mockserve.processes.channel import (
    Channel,
    DeathTold,
    Figures,
    FromAnswering,
    Gathering,
    Listening,
    Refused,
    Stop,
    Stopping,
    UsesBackend,
    WantMetrics,
    open_channel,
)
from mockserve.processes.engine_side import EngineSide


class Answering:
    """One process: what it says beside its requests, and how it ends."""

    def __init__(self, place: int, engines: EngineSide, gathering: Gathering, metrics_page: "AnswerMetrics") -> None:
        self.place = place
        self.listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self.stopping: asyncio.Future[Stopping] = asyncio.get_running_loop().create_future()
        self.death_told = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code, when it has one."""
        self._engines = engines
        self._gathering = gathering
        self._metrics_page = metrics_page
        self._process: SpawnProcess | None = None
        self._channel: Channel | None = None

    async def start(self, assignment: Assignment, far_end: socket.socket, near_end: socket.socket) -> None:
        """Start the process and a channel to it."""
        self._channel = await open_channel(near_end, self._heard, _ignore)
        self.end = self._engines.add(self._channel.tell)
        self._channel.sent = self.end.sent
        process = multiprocessing.get_context("spawn").Process(
            target=answer_until_told, args=(assignment,), name=f"answering {self.place}"
        )
        with _deaf_from_birth():
            process.start()
        far_end.close()
        self._process = process
        asyncio.get_running_loop().add_reader(process.sentinel, self._has_ended)

    @property
    def pid(self) -> int:
        """Its number to the operating system."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def stop(self, at_once: bool) -> None:
        """Let it end."""
        self.end.tell(Stop(at_once))

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and not self.ended.done():
            self._process.kill()

    def _heard(self, message: FromAnswering) -> None:
        if isinstance(message, Listening):
            self.listening.set_result(message)
            self._engines.welcome(self.end)
        elif isinstance(message, Refused):
            self.listening.set_exception(OptionError(message.message))
        elif isinstance(message, WantMetrics):
            self._metrics_page(self, message)
        elif isinstance(message, Figures):
            self._gathering.heard(self.place, message)
        elif isinstance(message, DeathTold):
            self.death_told.set()
        elif isinstance(message, UsesBackend):
            self._engines.use_backend(message)
        elif isinstance(message, Stopping):
            self.stopping.set_result(message)
        else:
            self.end.heard(message)

    def _has_ended(self) -> None:
        process = self._process
        assert process is not None
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        self.end.gone()
        self._gathering.gone(self.place)
        self.ended.set_result(process.exitcode or 0)


AnswerMetrics = Callable[[Answering, WantMetrics], None]


@contextmanager
def _deaf_from_birth() -> Iterator[None]:
    """Processes that are started meanwhile hear of no signal before they say what to do about it.

    Ctrl-C reaches all processes of a terminal, and would end one that is about to begin with a traceback.
    """
    resource_tracker.ensure_running()  # which would lift the mask, were it begun under it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore() -> None:
    """The end of a process says the same."""
