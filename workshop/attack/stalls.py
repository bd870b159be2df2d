"""The effect of one costly request on all others: gaps of streams, /health, and memory.

    python -m workshop.attack.stalls [--only TEXT|TEXT] [--part I/N] [--times 1] [--seconds 20] [--as-measured]

Each request is sent to a server that has its route, while a process of its own reads streams and polls `/health`. A row
for each has by how much the gaps of the streams grew over those before it, how long `/health` took, and by how many
megabytes memory grew. A star marks what is over its bound, and the exit code is 1 when there is one. The time for which
server or watcher waited for a processor is the machine's load, and is subtracted unless --as-measured is given.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import astuple, dataclass
from pathlib import Path

from workshop.attack import costly, memory
from workshop.attack.costly import COSTLY, Costly
from workshop.attack.generate import authorised
from workshop.attack.hostile import Message
from workshop.attack.judging import Bounds, read_errors
from workshop.attack.samples import Spread, overlap, read_samples
from workshop.attack.sending import Exchange, Outcome, exchange
from workshop.attack.setups import Running, Setup, running
from workshop.attack.watcher import GAP, HEALTH, watching

SETTLING_S = 0.5
LEAST_WINDOW_S = 1.5
"""Shorter windows would have too few gaps for a percentile."""
MEMORY_EVERY_S = 0.05
GENERATING = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-body-mb", "300", "--enable-scale-out"),
    *("--tokens-per-medium", "256", "--trust-request-chat-template"),
)
SERVERS = (
    Setup(name="generating", flags=GENERATING, heavy_needs=frozenset({costly.GENERATION, costly.SCALE_OUT})),
    Setup(name="embed", flags=("--runner", "pooling", "--convert", "embed"), heavy_needs=frozenset({costly.POOLING})),
    Setup(
        name="score", flags=("--runner", "pooling", "--convert", "classify"), heavy_needs=frozenset({costly.SCORING})
    ),
)


@dataclass(frozen=True, slots=True)
class Stall:
    """What one request did to others; a status with dots is of a reply that was not finished."""

    gap_p99_growth_ms: float
    gap_worst_growth_ms: float
    health_worst_ms: float
    memory_growth_mb: float
    status: str
    num_bytes: int
    took_s: float

    def over(self, bounds: Bounds) -> list[bool]:
        """Whether each of the four figures is over its bound."""
        return [found > allowed for found, allowed in zip(astuple(self)[:4], astuple(bounds), strict=True)]


def measure(
    server: Running, setup: Setup, kind: Costly, seconds: float, before_s: float = 3.0, times: int = 1,
    as_measured: bool = False,
) -> Stall:  # fmt: skip
    """Send a request so many times, each for at most `seconds`, after `before_s` seconds without it."""
    message = authorised(Message(method="POST", path=kind.path, body=kind.data()), setup)
    pid = server.pid or 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples"
        with watching(server, file, setup.generates, setup.api_key):
            time.sleep(SETTLING_S)
            quiet_s = time.monotonic()
            time.sleep(before_s)
            before_mb, peak_before_mb = memory.anonymous_mb(pid), memory.peak_mb(pid)
            began_s, exchanges, most_mb = time.monotonic(), list[Exchange](), before_mb
            with ThreadPoolExecutor(1) as sender:
                for _ in range(times):
                    sending = sender.submit(exchange, server.host, server.port, [message.serialised()], seconds)
                    while not sending.done():
                        wait([sending], MEMORY_EVERY_S)
                        most_mb = max(most_mb, memory.anonymous_mb(pid))
                    exchanges.append(sending.result())
            ended_s = time.monotonic()
            time.sleep(max(SETTLING_S, LEAST_WINDOW_S - (ended_s - began_s)))
            most_mb = max(most_mb, memory.anonymous_mb(pid), before_mb + memory.peak_mb(pid) - peak_before_mb)
            window = began_s, time.monotonic()
        samples = read_samples(file, as_measured)
    quiet = Spread.of([each for each in samples.get(GAP, []) if overlap(each.window, [(quiet_s, began_s)])])
    during, health = (
        Spread.of([each for each in samples.get(name, []) if overlap(each.window, [window])]) for name in (GAP, HEALTH)
    )
    return Stall(
        during.p99_ms - quiet.p99_ms if during.count else 0.0,
        during.worst_ms - quiet.p99_ms if during.count else 0.0,
        health.worst_ms,
        most_mb - before_mb,
        ",".join(sorted({f"{each.status}{'' if each.outcome is Outcome.ANSWERED else '…'}" for each in exchanges})),
        len(message.body),
        (ended_s - began_s) / times,
    )


def _row(kind: Costly, stall: Stall, bounds: Bounds) -> str:
    over = stall.over(bounds)
    figures = " ".join(
        f"{value:+8.0f}{'*' if each else ' '}" for value, each in zip(astuple(stall), over, strict=False)
    )
    line = f"{kind.name:34} {stall.num_bytes / 1e6:6.1f} {stall.status:>9} {stall.took_s:5.1f} {figures}"
    return f"{'OVER' if any(over) else 'ok  '} {line}"


def main(kinds: Sequence[Costly] = COSTLY, described: str | None = __doc__) -> None:
    """Measure all kinds, or those whose name has a text in it. Exit 1 if one is over the bounds."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="requests with this in their name, or texts with |")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts of the requests")
    parser.add_argument("--times", type=int, default=1, help="how often each is sent")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each may take")
    parser.add_argument("--quiet-s", type=float, default=2.0, help="the pause before each")
    parser.add_argument("--as-measured", action="store_true", help="count waits for a processor as the server's, too")
    Bounds.add_to(parser)
    given = parser.parse_args()
    number, _, parts = given.part.partition("/")
    chosen = [each for each in kinds if any(word in each.name for word in given.only.split("|"))]
    chosen = list(itertools.islice(chosen, int(number) - 1, None, int(parts or 1)))
    print(
        f"     {'request':34} {'MB':>6} {'reply':>9} {'s':>5} {'gap p99':>8}  {'gap max':>8}  {'/health':>8}  {'MB':>8}"
    )
    is_over = not chosen
    for setup in SERVERS:
        if not (fitting := [each for each in chosen if each.needs in setup.heavy_needs]):
            continue
        with running(setup) as server:
            for kind in fitting:
                stall = measure(server, setup, kind, given.seconds, given.quiet_s, given.times, given.as_measured)
                is_over = is_over or any(stall.over(Bounds.of(given)))
                print(_row(kind, stall, Bounds.of(given)), flush=True)
            tracebacks = read_errors(server.errors).count("Traceback ")
        if tracebacks:
            print(f"{setup.name}: {tracebacks} tracebacks")
            is_over = True
    sys.exit(is_over)


if __name__ == "__main__":
    main()
