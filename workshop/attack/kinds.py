"""The effect of each heavy kind and each costly constraint on other clients: one row for each, sent by itself."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.attack import constraints, memory
from workshop.attack.generate import authorised
from workshop.attack.heavy import HEAVY
from workshop.attack.hostile import Message
from workshop.attack.judging import Bounds
from workshop.attack.samples import Sample, Spread, Window, overlap, read_samples
from workshop.attack.sending import Exchange, Outcome, exchange
from workshop.attack.setups import Running, Setup
from workshop.attack.watcher import GAP, HEALTH

LEAST_WINDOW_S = 1.5
"""Shorter windows would have too few gaps for a percentile."""
AFTER_S = 0.5
MEMORY_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Kind:
    """One request; `body` makes what is sent as JSON."""

    name: str
    path: str
    body: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """A kind that was sent, and what was measured in its window."""

    kind: Kind
    num_bytes: int
    window: Window
    exchanges: Sequence[Exchange]
    memory_growth_mb: float

    @property
    def outcome(self) -> str:
        """The status of the replies, and whether they were whole."""
        found = {f"{each.status}{'' if each.outcome is Outcome.ANSWERED else '…'}" for each in self.exchanges}
        return ",".join(sorted(found))


def kinds_of(setup: Setup, only: str, part: str) -> list[Kind]:
    """Every kind that a set-up has routes for, or the I-th of N parts of them for a `part` of I/N."""
    found = [Kind(each.name, each.path, each.body) for each in HEAVY if each.needs in setup.heavy_needs]
    if setup.generates:
        found += [Kind(f"constraint: {each.name}", each.path, each.body) for each in constraints.HOSTILE]
    found = [each for each in found if any(text in each.name for text in only.split("|"))]
    number, _, parts = part.partition("/")
    share = -(-len(found) // int(parts or 1))
    return found[(int(number) - 1) * share : int(number) * share]


class Measurement:
    """Sends the kinds one after the other, with quiet times between them."""

    def __init__(self, setup: Setup, server: Running, given: argparse.Namespace) -> None:
        self._setup = setup
        self._server = server
        self._given = given
        self.quiet: list[Window] = []
        self.sent: list[Sent] = []
        self.num_unsent = 0

    async def run(self) -> None:
        """Send all kinds that the time limit leaves time for."""
        kinds = kinds_of(self._setup, self._given.only, self._given.part)
        ends_at_s = time.monotonic() + self._given.time_limit_s
        await self._measure_quiet()
        for number, kind in enumerate(kinds):
            if time.monotonic() > ends_at_s or not self._server.is_alive():
                self.num_unsent = len(kinds) - number
                break
            self.sent.append(await self._send(kind))
            await self._measure_quiet()

    async def _measure_quiet(self) -> None:
        began_s = time.monotonic()
        await asyncio.sleep(self._given.quiet_s)
        self.quiet.append((began_s + self._given.quiet_s / 3, time.monotonic()))

    async def _send(self, kind: Kind) -> Sent:
        body = json.dumps(kind.body()).encode()
        message = authorised(Message(method="POST", path=kind.path, body=body), self._setup, None)
        before_mb, peak_before_mb, most_mb = self._memory_mb(), self._peak_mb(), 0.0
        began_s = time.monotonic()
        exchanges: list[Exchange] = []
        for _ in range(self._given.times):
            sending = asyncio.create_task(
                exchange(self._server.host, self._server.port, [message.serialised()], self._given.patience_s)
            )
            while not sending.done():
                await asyncio.wait([sending], timeout=MEMORY_EVERY_S)
                most_mb = max(most_mb, self._memory_mb())
            exchanges.append(sending.result())
        await asyncio.sleep(max(AFTER_S, LEAST_WINDOW_S - (time.monotonic() - began_s)))
        most_mb = max(most_mb, self._memory_mb())
        if self._peak_mb() > peak_before_mb:  # a peak between two samples is one of the main process
            most_mb = max(most_mb, before_mb + self._peak_mb() - peak_before_mb)
        return Sent(kind, len(body), (began_s, time.monotonic()), exchanges, most_mb - before_mb)

    def _memory_mb(self) -> float:
        return 0.0 if self._server.pid is None else memory.anonymous_mb(self._server.pid)

    def _peak_mb(self) -> float:
        return 0.0 if self._server.pid is None else memory.peak_mb(self._server.pid)


def rows(found: Measurement, samples_file: Path, bounds: Bounds, as_measured: bool) -> tuple[list[str], list[str]]:
    """The lines of the table, and the bounds that were broken."""
    samples = read_samples(samples_file, as_measured)
    gap_quiet, health_quiet = (_spread(samples.get(name, []), found.quiet) for name in (GAP, HEALTH))
    lines = [
        f"  quiet: gaps {gap_quiet}",
        f"  quiet: /health {health_quiet}",
        f"       {'kind':44} {'body':>7} {'reply':>9} {'s':>5} "
        f"{'gap p99':>8} {'gap max':>8} {'/health':>8} {'memory':>8}",
    ]
    broken: list[str] = []
    for each in found.sent:
        gap, health = (_spread(samples.get(name, []), [each.window]) for name in (GAP, HEALTH))
        values = (
            (gap.p99_ms - gap_quiet.p99_ms, bounds.gap_p99_ms) if gap.count else (0.0, bounds.gap_p99_ms),
            (gap.worst_ms - gap_quiet.p99_ms, bounds.gap_worst_ms) if gap.count else (0.0, bounds.gap_worst_ms),
            (health.worst_ms, bounds.health_ms),
            (each.memory_growth_mb, bounds.memory_mb),
        )
        shown = " ".join(f"{value:+7.0f}{'*' if value > most else ' '}" for value, most in values)
        is_over = any(value > most for value, most in values)
        seconds = (each.window[1] - each.window[0]) / max(len(each.exchanges), 1)
        line = f"{each.kind.name:44} {each.num_bytes / 1e6:5.1f}MB {each.outcome:>9} {seconds:5.1f} {shown}"
        lines.append(f"  {'OVER' if is_over else 'ok  '} {line}")
        if is_over:
            broken.append(line)
    if found.num_unsent:
        broken.append(f"{found.num_unsent} kinds were not sent before the time limit or the end of the server")
    return lines, broken


def _spread(samples: Sequence[Sample], windows: Sequence[Window]) -> Spread:
    return Spread.of([each for each in samples if overlap(each.window, windows)])
