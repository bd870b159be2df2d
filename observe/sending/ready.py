"""What a process needs that sends a share of a schedule: open connections, and requests that are built."""

import gc
from collections.abc import Callable

from observe.client.client import Client
from observe.clock import Clock
from observe.dispatch import Dispatcher, Sent
from observe.http.request import get_bytes, parse_server
from observe.plans.resume import Agenda
from observe.plans.workload import Workload, preparer
from observe.requests.prompts import PromptBook
from observe.requests.schedule import num_spare_connections
from observe.sending.share import Share


async def connected_client(share: Share, clock: Clock) -> Client:
    """A client with connections for the share, all used once. Raises RunError, or OSError; BlisError for TLS."""
    options = share.options
    client = Client(
        parse_server(options.url),
        timeout_s=options.timeout,
        num_spare=num_spare_connections(share.plan),
        tls=options.tls,
        clock=clock,
    )
    try:
        await client.open()
        await client.warm_up(get_bytes(client.server, "/health", options.headers))
    except BaseException:
        await client.close()
        raise
    return client


def ready_dispatcher(share: Share, client: Client, finished: Callable[[Sent], None]) -> Dispatcher:
    """What sends the share when it is run; its first requests are built."""
    agenda = Agenda(plan=share.plan, request_ids=share.request_ids)
    prompts = PromptBook(share.options.seed, share.scale)
    workload = Workload(options=share.options, agenda=agenda, style=share.style, prompts=prompts, rtt_ms=None)
    dispatcher = Dispatcher(client, share.plan, preparer(client.server, workload), finished)
    last_preparations(dispatcher)
    return dispatcher


def last_preparations(dispatcher: Dispatcher) -> None:
    """Build the first requests. What exists then stays: collections that look at it again would hold up answers."""
    dispatcher.build_ahead()
    gc.collect()
    gc.freeze()
