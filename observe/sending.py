"""A share of the requests: its description, the client prepared for it, and its sending with a progress display."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from blis_sim.options.registry import Registry
from observe.balancer import Balancer
from observe.client import Client
from observe.event_loop import Clock, Interrupt, Nanos
from observe.figures import RunStats, keep_showing, open_view, progress_of
from observe.http import get_bytes
from observe.live_page import with_live_page
from observe.options import ObserveOptions
from observe.requests import Dispatcher, SentRequest, num_spare_connections
from observe.workload import Workload, preparer

SENDERS: Registry[Any] = Registry("blis.senders")
"""Modules of installed packages that send from other machines, by name.

Each has `connect(address, num_senders)`, a context manager, and a coroutine function
`send(workload, clock, recorder, interrupt)`, which returns the number of requests that were not sent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShard:
    """The part of a workload that one process sends. Requests keep their numbers."""

    workload: Workload
    clock: Clock
    columns: frozenset[str]
    """Columns of the recording beside those that every recording has."""


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """From a process: connections are open and requests are built."""


@dataclass(frozen=True, slots=True)
class BeginMessage:
    """From the run: the instant from which the schedule counts, on the counter that all processes read."""

    origin: Nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneMessage:
    """The final message of a process. `problem` is the reason for which it has not begun."""

    stats: RunStats | None = None
    num_not_sent: int = 0
    failure: str = ""
    rescued: str = ""
    problem: str = ""


def shards_of(workload: Workload, clock: Clock, num_shares: int) -> list[ScheduleShard]:
    """The requests dealt out in turn, so that each share has the shape of the whole; none is empty."""
    whole = workload.plan
    num_shares = min(num_shares, len(whole.requests))
    shards = []
    for start in range(num_shares):
        dealt = slice(start, None, num_shares)
        part = replace(whole, requests=whole.requests[dealt], request_ids=whole.request_ids[dealt], earlier=None)
        share = replace(workload, plan=part)
        shards.append(ScheduleShard(workload=share, clock=clock, columns=whole.columns))
    return shards


def clients_of(options: ObserveOptions, num_spare: int, clock: Clock) -> list[Client]:
    """A client for each server of the options."""
    return [
        Client(server, timeout_s=options.timeout, num_spare=num_spare, tls=options.tls, clock=clock)
        for server in options.servers
    ]


def balanced(clients: Sequence[Client], options: ObserveOptions) -> Client | Balancer:
    """The sender to all of these servers: the client of a single one, else one that chooses among them."""
    return clients[0] if len(clients) == 1 else Balancer(clients, options.url_strategy, options.prompt_seed)


async def connected_client(share: ScheduleShard, clock: Clock) -> Client | Balancer:
    """A client with connections for the share, all used once. Raises RunError, or OSError; BlisError for TLS."""
    options = share.workload.options
    clients = clients_of(options, num_spare_connections(share.workload.plan.requests), clock)
    client, headers = balanced(clients, options), options.headers
    try:
        await asyncio.gather(*(client.open() for client in clients))
        await asyncio.gather(*(client.warm_up(get_bytes(client.server, "/health", headers)) for client in clients))
    except BaseException:
        await client.close()
        raise
    return client


def ready_dispatcher(
    share: ScheduleShard, client: Client | Balancer, finished: Callable[[SentRequest], None]
) -> Dispatcher:
    """Return a dispatcher for the share, with its first requests built."""
    workload = share.workload
    dispatcher = Dispatcher(client, workload.plan.requests, preparer(client.server, workload), finished)
    build_first_requests(dispatcher)
    return dispatcher


def build_first_requests(dispatcher: Dispatcher) -> None:
    """Build the first requests. What exists then stays: collections that look at it again would hold up answers."""
    dispatcher.build_ahead()
    gc.freeze()  # also what is garbage by now: to search for it takes as long as all else that a short run does


_HEAD_START_NS = 50_000_000


async def send_with_progress(
    client: Client | Balancer,
    dispatcher: Dispatcher,
    stats: RunStats,
    *,
    requested_per_s: float,
    starts_at_us: int = 0,
    interrupt: Interrupt | None = None,
    live_port: int | None = None,
) -> tuple[Nanos, int]:
    """Send everything, or until the interrupt: the instant of the start, and how many requests were not sent.

    `starts_at_us` is where in the schedule it starts, `stats` what is known of the answers so far. Raises RunError
    where the page at `live_port` cannot be served.
    """
    view = await with_live_page(open_view(), live_port, client.server.url)
    build_first_requests(dispatcher)
    origin = perf_counter_ns() + _HEAD_START_NS
    showing = asyncio.create_task(
        keep_showing(
            view,
            lambda: progress_of(dispatcher, stats),
            lambda: dispatcher.num_planned,
            origin=origin,
            requested_per_s=requested_per_s,
        )
    )
    try:
        await dispatcher.run(origin - starts_at_us * 1000)
    except asyncio.CancelledError:
        if interrupt is None or not interrupt.consume_cancellation():
            raise
    finally:
        # After a run to the end nothing is left to stop.
        num_not_sent = dispatcher.stop()
        client.cancel_all()
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing
        gc.unfreeze()
        view.close()
    return origin, num_not_sent
