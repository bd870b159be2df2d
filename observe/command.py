"""`blis observe`: put load on a server and record what it did."""

import asyncio
import resource
from collections.abc import Coroutine
from typing import Any

from observe.options import ObserveOptions

__all__ = ["ObserveOptions", "run"]


def run(options: ObserveOptions) -> int:
    """Run the measurement, write the recording, print the summary as JSON.

    Exit codes: 0 done, 1 nothing could be measured or written, 128 + n stopped by signal n. Bad input raises.
    """
    from observe.errors import RunError
    from observe.measurement import measure
    from observe.messages import say
    from observe.plan import plan_of
    from observe.resume import agenda_of

    agenda = agenda_of(options, plan_of(options))
    if not agenda.plan:
        say(f"{options.paths.data} has all of the requests already, nothing is left to send")
        return 0
    _allow_many_connections()
    try:
        return _run_loop(measure(options, agenda))
    except RunError as error:
        say(f"blis observe: error: {error}")
        return 1


def _run_loop(work: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:  # not available everywhere, and not needed to work
        return asyncio.run(work)
    return uvloop.run(work)


def _allow_many_connections() -> None:
    """Each request in flight has a connection; the usual limit of open files is 1024."""
    most = 1 << 20
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
