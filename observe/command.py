"""`blis observe`: put load on a server and record what it did."""

import asyncio
import resource
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from observe.options import ObserveOptions
from observe.schedule import Planned

__all__ = ["ObserveOptions", "run"]


def run(options: ObserveOptions) -> int:
    """Run the measurement, write the recording, print the summary as JSON.

    Exit codes: 0 done, 1 nothing could be measured or written, 128 + n stopped by signal n. Bad input raises.
    """
    from observe.errors import RunError
    from observe.measurement import measure
    from observe.messages import say

    plan = plan_of(options)
    _allow_many_connections()
    try:
        return _run_loop(measure(options, plan))
    except RunError as error:
        say(f"blis observe: error: {error}")
        return 1


def plan_of(options: ObserveOptions) -> Sequence[Planned]:
    """What the options ask to send. Raises BlisError when the recording to send cannot be used."""
    from observe.errors import ObserveError
    from observe.schedule import constant_arrivals_us, plan_from_trace, plan_synthetic, poisson_arrivals_us
    from traces import read_trace

    if options.trace is not None:
        plan = plan_from_trace(read_trace(options.trace).rows)[: options.num_requests]
        if len(plan) <= options.warmup_requests:
            raise ObserveError(
                f"{options.trace}: expected more requests than --warmup-requests ({options.warmup_requests}), got {len(plan)}"
            )
        return plan
    assert options.rate is not None
    assert options.num_requests is not None
    if options.arrival == "poisson":
        arrivals_us = poisson_arrivals_us(options.rate, options.num_requests, Random(f"{options.seed}/arrivals"))
    else:
        arrivals_us = constant_arrivals_us(options.rate, options.num_requests)
    return plan_synthetic(
        arrivals_us,
        options.prompt_lengths,
        options.output_lengths,
        prefix_tokens=options.prefix_tokens,
        random=Random(f"{options.seed}/lengths"),
    )


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
