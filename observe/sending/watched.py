"""A schedule is sent while somebody watches: from the last preparations until nothing is under way any more."""

import asyncio
import gc
from contextlib import suppress
from time import perf_counter_ns

from observe.client.client import Client
from observe.clock import Nanos
from observe.dispatch import Dispatcher
from observe.figures.stats import RunStats
from observe.interrupt import Interrupt
from observe.live.progress import progress_of
from observe.live.table import keep_showing, open_view
from observe.sending.ready import last_preparations

_HEAD_START_NS = 50_000_000


async def send_watched(
    client: Client,
    dispatcher: Dispatcher,
    stats: RunStats,
    *,
    asked_per_s: float,
    starts_at_us: int = 0,
    interrupt: Interrupt | None = None,
) -> tuple[Nanos, int]:
    """Send everything, or until the interrupt: the instant of the start, and how many requests were not sent.

    `starts_at_us` is where in the schedule it starts, `stats` what is known of the answers so far.
    """
    view = open_view()
    last_preparations(dispatcher)
    origin = perf_counter_ns() + _HEAD_START_NS
    showing = asyncio.create_task(
        keep_showing(
            view,
            lambda: progress_of(dispatcher, stats),
            lambda: dispatcher.num_wanted,
            origin=origin,
            asked_per_s=asked_per_s,
        )
    )
    try:
        await dispatcher.run(origin - starts_at_us * 1000)
    except asyncio.CancelledError:
        if interrupt is None or not interrupt.taken():
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
