"""A process of a Ray cluster that sends a share of a schedule and hands over each request that has ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

from blis_sim.options import BlisError
from observe.client.client import Client
from observe.clock import Nanos
from observe.dispatch import Dispatcher, Sent
from observe.errors import RunError
from observe.event_loop import allow_many_connections
from observe.on_ray.ended import Ended, ended_of
from observe.sending.ready import connected_client, ready_dispatcher
from observe.sending.share import Share

_BATCH_S = 0.5
_FORGOTTEN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What has ended since the last one, and how far the share is."""

    ended: Sequence[Ended]
    num_sent: int
    num_in_flight: int
    is_over: bool


class RemoteSender:
    """Its methods are called from the run, in this order: `counter`, `get_ready`, `begin`, `take` until it is over.

    Nothing is written here. When nobody takes any more, because the run is gone, it stops by itself.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._ahead_ns = 0
        self._client: Client | None = None
        self._dispatcher: Dispatcher | None = None
        self._sending: asyncio.Task[None] | None = None
        self._told_to_stop = asyncio.Event()
        self._ended: list[Ended] = []
        self._taken_at: Nanos = 0

    async def counter(self) -> Nanos:
        """What the clock of this machine reads now."""
        return perf_counter_ns()

    async def get_ready(self, ahead_ns: int) -> str:
        """Connect and build requests; the clock here is ahead of that of the run by so much. Says why it cannot."""
        self._ahead_ns = ahead_ns
        clock = self._share.clock
        try:
            allow_many_connections()
            self._client = await connected_client(
                self._share, replace(clock, counter_ns=clock.counter_ns + self._ahead_ns)
            )
        except (RunError, BlisError, OSError) as error:
            return str(error)
        self._dispatcher = ready_dispatcher(self._share, self._client, self._keep)
        return ""

    async def begin(self, origin: Nanos) -> None:
        """Send by a schedule that counts from this instant, of the clock of the run."""
        assert self._client is not None
        assert self._dispatcher is not None
        self._taken_at = perf_counter_ns()
        self._sending = asyncio.create_task(self._send(self._client, self._dispatcher, origin + self._ahead_ns))

    async def take(self) -> Batch:
        """What there is, after a moment; at once when all is over."""
        assert self._sending is not None
        assert self._dispatcher is not None
        self._taken_at = perf_counter_ns()
        await asyncio.wait([self._sending], timeout=_BATCH_S)
        is_over = self._sending.done()
        if is_over:
            self._sending.result()
        ended, self._ended = self._ended, []
        return Batch(
            ended=ended,
            num_sent=self._dispatcher.num_sent,
            num_in_flight=self._dispatcher.num_in_flight,
            is_over=is_over,
        )

    async def stop(self) -> None:
        """Send no more, and cut what is under way."""
        self._told_to_stop.set()

    def _keep(self, sent: Sent) -> None:
        self._ended.append(ended_of(sent, self._ahead_ns))

    async def _send(self, client: Client, dispatcher: Dispatcher, origin: Nanos) -> None:
        tasks = [
            asyncio.create_task(dispatcher.run(origin)),
            asyncio.create_task(self._told_to_stop.wait()),
            asyncio.create_task(self._until_forgotten()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        dispatcher.stop()
        client.cancel_all()
        await client.close()
        if tasks[0].done() and not tasks[0].cancelled():
            tasks[0].result()

    async def _until_forgotten(self) -> None:
        while perf_counter_ns() - self._taken_at < _FORGOTTEN_S * 1e9:  # noqa: ASYNC110 - nobody tells of not coming
            await asyncio.sleep(1)
