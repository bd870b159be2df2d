"""The effect of one costly request on all others: gaps of streams, /health, and memory.

    python -m workshop.attack.stalls [--only TEXT|TEXT] [--part I/N] [--times 1] [--seconds 20] [--as-measured]

Each request of `workshop.attack.costly` and `tests.wire.hostile_constraints` is sent to a server that has its route,
while a process of its own reads streams and polls `/health`. A row for each has by how much the gaps of the streams
grew over those before it, how long `/health` took, and by how many megabytes memory grew. A star marks what is over its
bound, and the exit code is 1 when there is one. The time for which server or watcher waited for a processor is the
machine's load, and is subtracted unless --as-measured is given.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from tests.wire.hostile_constraints import HOSTILE
from workshop.attack.costly import COSTLY, Costly
from workshop.attack.sending import Exchange, Message, exchange
from workshop.attack.setups import (
    GENERATION,
    PARSERS,
    POOLING,
    POOLING_FLAGS,
    SCALE_OUT,
    SCORING,
    Running,
    Setup,
    running,
)  # fmt: skip
from workshop.attack.watcher import BROKEN, GAP, HEALTH, HTTP, NONE, read_samples, watching, within
from workshop.processes import anonymous_mb, peak_mb

SETTLING_S = 0.5
LEAST_WINDOW_S = 1.5
"""Shorter windows would have too few gaps for a percentile."""
MEMORY_EVERY_S = 0.05
GENERATING = (*PARSERS, *("--max-body-mb", "300", "--enable-scale-out", "--tokens-per-medium", "256"))
SERVERS = (
    Setup(
        name="generating",
        flags=(*GENERATING, "--trust-request-chat-template"),
        needs=frozenset({GENERATION, SCALE_OUT}),
    ),
    Setup(name="embed", flags=(*POOLING_FLAGS, "embed"), needs=frozenset({POOLING})),
    Setup(name="score", flags=(*POOLING_FLAGS, "classify"), needs=frozenset({SCORING})),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a server under attack, in relation to the quiet time before."""

    gap_p99_ms: float = 50.0
    gap_worst_ms: float = 100.0
    health_ms: float = 100.0
    memory_mb: float = 200.0

    @staticmethod
    def parser(description: str | None) -> argparse.ArgumentParser:
        """A command line with a flag for each bound, and one for how times are measured."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--as-measured", action="store_true", help="count waits for a processor as the server's")
        for each in fields(Bounds):
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default, help="bound")
        return parser

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Bounds":
        """The bounds that a command line sets."""
        return cls(*(getattr(given, each.name) for each in fields(cls)))


@dataclass(frozen=True, slots=True)
class Effect:
    """What an attack did to others."""

    gap_p99_growth_ms: float
    gap_worst_growth_ms: float
    health_worst_ms: float
    memory_growth_mb: float
    num_broken: int
    """Streams that ended early."""

    def over(self, bounds: Bounds) -> list[bool]:
        """Whether each of the first four figures is over its bound."""
        return [found > allowed for found, allowed in zip(astuple(self)[:4], astuple(bounds), strict=True)]


class Table:
    """Prints a row for each effect, with a star at what is over its bound."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.is_broken = False
        print(f"{'':44} {'gap p99':>8}  {'gap max':>8}  {'/health':>8}  {'MB':>8}", flush=True)

    def add(self, name: str, effect: Effect, remarks: Sequence[str] = (), has_even_streams: bool = True) -> None:
        """Print a row; `remarks` are further broken rules. Without even streams memory alone is bounded."""
        over = [
            *((False,) * 3 if not has_even_streams else effect.over(self._bounds)[:3]),
            effect.over(self._bounds)[3],
        ]
        cells = [
            f"{each:8.0f}{'*' if is_over else ' '}" for each, is_over in zip(astuple(effect)[:4], over, strict=True)
        ]
        is_broken = any(over) or bool(remarks)
        self.is_broken |= is_broken
        print(f"{name:44} {' '.join(cells)} {'BROKEN' if is_broken else 'met'}", flush=True)
        print("".join(f"    {line}\n" for line in remarks), end="", flush=True)


@contextmanager
def _sampled_memory(pid: int) -> Iterator[list[float]]:
    """Sample the memory of a process and all that it starts; the last item is the most."""
    found, is_over = [anonymous_mb(pid)], threading.Event()

    def sample() -> None:
        while not is_over.wait(MEMORY_EVERY_S):
            found.append(anonymous_mb(pid))

    before_mb, thread = peak_mb(pid), threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        # A peak between two samples is one of the main process, which reads all bodies.
        found.append(max([*found, found[0] + peak_mb(pid) - before_mb]))


def effect_of(
    act: Callable[[], object], server: Running, protocol: str = HTTP, api_key: str | None = None,
    before_s: float = 3.0, as_measured: bool = False,
) -> Effect:  # fmt: skip
    """Return what `act` does to the other clients of a server, in comparison with `before_s` seconds without it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples"
        with watching(server, file, protocol, api_key), _sampled_memory(server.pid or 0) as memory_mb:
            time.sleep(SETTLING_S)
            quiet_s = time.monotonic()
            time.sleep(before_s)
            began_s = time.monotonic()
            act()
            time.sleep(max(SETTLING_S, LEAST_WINDOW_S - (time.monotonic() - began_s)))
            ended_s = time.monotonic()
        samples = read_samples(file, as_measured)
    quiet, gaps = (within(samples[GAP], *window) or [0.0] for window in ((quiet_s, began_s - 0.1), (began_s, ended_s)))
    return Effect(
        gap_p99_growth_ms=float(np.percentile(gaps, 99) - np.percentile(quiet, 99)),
        gap_worst_growth_ms=max(gaps) - max(quiet),
        health_worst_ms=max(within(samples[HEALTH], began_s, ended_s), default=0.0),
        memory_growth_mb=memory_mb[-1] - memory_mb[0],
        num_broken=len(within(samples[BROKEN], began_s, ended_s)),
    )


def measure(
    server: Running, setup: Setup, kind: Costly, seconds: float, before_s: float = 3.0, times: int = 1,
    as_measured: bool = False,
) -> tuple[Effect, Exchange]:  # fmt: skip
    """Send a request so many times, each for at most `seconds`. Returns its effect and the last answer."""
    data = Message(method="POST", path=kind.path, body=kind.data()).serialised()
    found: list[Exchange] = []

    def send() -> None:
        found.extend(exchange(server.host, server.port, [data], seconds) for _ in range(times))

    protocol = HTTP if setup.generates else NONE
    effect = effect_of(send, server, protocol, setup.api_key, before_s, as_measured)
    return effect, found[-1]


def main() -> None:
    """Measure all kinds, or those whose name has a text in it. Exit 1 if one is over the bounds."""
    parser = Bounds.parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="requests with this in their name, or texts with |")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts of the requests")
    parser.add_argument("--times", type=int, default=1, help="how often each is sent")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each may take")
    parser.add_argument("--quiet-s", type=float, default=2.0, help="the pause before each")
    given = parser.parse_args()
    number, _, parts = given.part.partition("/")
    chosen = [each for each in (*COSTLY, *HOSTILE) if any(word in each.name for word in given.only.split("|"))]
    chosen = list(itertools.islice(chosen, int(number) - 1, None, int(parts or 1)))
    table = Table(Bounds.of(given))
    for setup in SERVERS:
        if not (fitting := [each for each in chosen if each.needs in setup.needs]):
            continue
        with running(setup) as server:
            for kind in fitting:
                effect, found = measure(
                    server, setup, kind, given.seconds, given.quiet_s, given.times, given.as_measured
                )
                name = f"{kind.name}: {found.status or found.outcome} in {found.took_s:.1f} s"
                table.add(name, effect, [f"traceback: {each}" for each in server.tracebacks()])
    sys.exit(table.is_broken or not chosen)


if __name__ == "__main__":
    main()
