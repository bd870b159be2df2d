"""Selection of the rows of a file, and their arrival times if the file has none."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from random import Random

from blis_sim.options import OptionError
from blis_sim.options.limits import LATEST_US
from traces.graph import without_others
from traces.importers.imported import in_order
from traces.importers.settings import ConvertOptions
from traces.rows import TraceRow

MOST_S = 9_000_000_000
"""Times in seconds are below: in microseconds they fit into the columns of a trace."""


def drawn_arrivals_us(options: ConvertOptions, count: int) -> list[int]:
    """Poisson arrivals at --rate, the first at 0. Raises OptionError without a rate."""
    if options.rate is None:
        raise OptionError(f"--rate is required, as {options.name} has no arrival times")
    random = Random(f"{options.seed}/arrivals")
    gaps_us = (1e6 * random.expovariate(options.rate) for _ in range(count - 1))
    arrivals_us = [round(at) for at in accumulate(gaps_us, initial=0.0)][:count]
    if arrivals_us and arrivals_us[-1] > LATEST_US:
        raise OptionError(f"--rate is too low for {count} requests: the last would come after {LATEST_US:.2g} us")
    return arrivals_us


def taken(options: ConvertOptions, rows: Sequence[TraceRow], left_out: Counter[str]) -> list[TraceRow]:
    """The first rows by arrival that can be sent; adds the others to `left_out`."""
    has_tokens = [row for row in rows if row.input_tokens + row.prefix_length > 0 and row.output_tokens > 0]
    usable = in_order(without_others(rows, has_tokens))
    if usable and usable[-1].arrival_time_us > LATEST_US:
        raise OptionError(f"{options.name}: the last request would come after {LATEST_US:.2g} us")
    left_out["requests without prompt or output tokens"] += len(rows) - len(usable)
    first = usable[: options.num_requests]
    left_out["requests beyond --num-requests"] += len(usable) - len(first)
    return first
