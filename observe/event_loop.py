"""The event loop of a load client, and what the operating system must allow it."""

import asyncio
import resource
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


def run_loop(work: Coroutine[object, object, Result]) -> Result:
    """Run to the end on the fastest loop there is."""
    try:
        import uvloop
    except ImportError:  # not available everywhere, and not needed to work
        return asyncio.run(work)
    return uvloop.run(work)


def allow_many_connections() -> None:
    """Each request in flight has a connection; the usual limit of open files is 1024."""
    most = 1 << 20
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
