"""The findings of an attack on one server, and the bounds it broke."""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from workshop.attack.hostile import HostileRequest
from workshop.attack.samples import Sample, Spread, Window, doing, overlap
from workshop.attack.sending import Exchange, Outcome
from workshop.attack.watcher import BROKEN, GAP, HEALTH, OWN

NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a server under attack, in relation to the quiet times of the same run."""

    gap_p99_ms: float = 50.0
    gap_worst_ms: float = 100.0
    health_ms: float = 100.0
    memory_mb: float = 200.0

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add a flag for each bound."""
        for each in fields(Bounds):
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default, help="bound")

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Bounds":
        """The bounds that a command line sets."""
        return cls(*(getattr(given, each.name) for each in fields(cls)))


@dataclass(frozen=True, slots=True)
class GenuineError:
    """A 5xx that the genuine server answers with, too."""

    status: int
    route: str
    reply: str
    reason: str


_READ_BY_ROUTE = r"/invocations|/scale_elastic_ep|/collective_rpc|.*/?abort_requests"
_GENERATING = r"/v1/.*|/inference/.*|/invocations|/tokenize"
GENUINE_ERRORS = (
    GenuineError(500, r"/scale_elastic_ep", "Scale failed", "no deployment can be scaled without Ray"),
    GenuineError(503, r".*", "Generation is paused", "an operator has paused generation"),
    GenuineError(
        500, _READ_BY_ROUTE, "maximum recursion depth exceeded while decoding", "the route reads its body itself"
    ),
    GenuineError(
        500, _GENERATING, "maximum recursion depth exceeded while decoding", "arguments of a call are too deep"
    ),
    GenuineError(500, r".*", "object has no attribute 'get'", "fields are read of what is no object"),
    GenuineError(500, r".*", '"message":""', "the engine cannot be sent what has no UTF-8 or more than 64 bits"),
    GenuineError(500, _GENERATING, "Internal server error", "a schema refers to itself without end"),
    GenuineError(500, r"/abort_requests", "Failed to abort requests", "the ids are no list"),
    GenuineError(500, r"/v1/load_lora_adapter", "surrogates not allowed", "the engine cannot be sent the name"),
    GenuineError(500, r"/v1/load_lora_adapter", "Call to add_lora method failed", "adapters are not enabled"),
    GenuineError(
        500, r"/release_kv_cache_memory.*", "release_kv_cache_memory method failed", "the engine is not paused"
    ),
)
"""Each was seen from vLLM 0.33."""


@dataclass(slots=True)
class AttackResult:
    """All that happened during one attack."""

    setup: str
    exchanges: list[tuple[HostileRequest, Exchange]] = field(default_factory=list)
    quiet: list[Window] = field(default_factory=list)
    disturbed: list[Window] = field(default_factory=list)
    memory_before_mb: float = 0.0
    memory_worst_mb: float = 0.0
    memory_culprits: list[str] = field(default_factory=list)
    died: bool = False
    num_unsent: int = 0
    """Requests that the time limit left no time for."""
    left_behind: float = 0.0
    errors: str = ""

    def unexpected_errors(self) -> list[tuple[HostileRequest, Exchange]]:
        """Answers of 500 and above that the genuine server would not give."""
        return [
            (request, each)
            for request, each in self.exchanges
            if each.status is not None and each.status >= 500 and not _is_genuine(request, each)
        ]

    def ended(self, outcome: Outcome) -> list[tuple[HostileRequest, Exchange]]:
        """Exchanges that ended in one way."""
        return [each for each in self.exchanges if each[1].outcome is outcome]

    def closed(self) -> list[tuple[HostileRequest, Exchange]]:
        """Whole messages whose connection was closed without a whole answer."""
        return [each for each in self.ended(Outcome.CLOSED) if each[0].is_complete]

    def hangs(self) -> list[tuple[HostileRequest, Exchange]]:
        """Whole messages without an answer that do not wait for tokens."""
        return [each for each in self.ended(Outcome.SILENT) if not each[0].may_generate]

    def tracebacks(self) -> list[str]:
        """The last line of each traceback on standard error."""
        blocks = re.split(r"(?=^Traceback )", self.errors, flags=re.MULTILINE)[1:]
        return [
            next((line for line in block.splitlines()[1:] if line and not line[0].isspace()), "(no last line)")[:300]
            for block in blocks
        ]

    def in_flight(self, window: Window) -> list[str]:
        """The kinds of requests that were in flight during a window."""
        return [
            f"{request.kind} {request.route}"
            for request, each in self.exchanges
            if overlap(window, [(each.started_s, each.ended_s)])
        ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Lines to print, and the bounds that were broken."""

    lines: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def judged(attacked: AttackResult, samples: dict[str, list[Sample]], bounds: Bounds) -> Verdict:
    """The report of one attack."""
    verdict = Verdict()
    _judge_answers(attacked, verdict)
    _judge_times(attacked, samples, bounds, verdict)
    growth_mb = attacked.memory_worst_mb - attacked.memory_before_mb
    verdict.lines.append(f"  memory: {attacked.memory_before_mb:.0f} MB before, at most +{growth_mb:.0f} MB")
    if growth_mb > bounds.memory_mb:
        culprits = "; ".join(attacked.memory_culprits[:NUM_SHOWN])
        verdict.broken.append(f"memory grew by {growth_mb:.0f} MB, allowed are {bounds.memory_mb:.0f} ({culprits})")
    return verdict


def _judge_answers(attacked: AttackResult, verdict: Verdict) -> None:
    statuses = Counter(each.status for _, each in attacked.exchanges if each.outcome is Outcome.ANSWERED)
    shown = ", ".join(
        f"{status} x {count:,}" for status, count in sorted(statuses.items(), key=lambda each: str(each[0]))
    )
    others = Counter(str(each.outcome) for _, each in attacked.exchanges if each.outcome is not Outcome.ANSWERED)
    verdict.lines.extend(
        [f"  answers: {shown}", *(f"  {outcome}: {count:,}" for outcome, count in sorted(others.items()))]
    )
    for what, found in (
        ("5xx that the genuine server does not give", attacked.unexpected_errors()),
        ("closed connections", attacked.closed()),
        ("hangs", attacked.hangs()),
    ):
        if found:
            verdict.broken.append(f"{len(found)} {what}")
            verdict.broken.extend([f"    {line}" for line in _grouped(found)])
    tracebacks = Counter(attacked.tracebacks())
    if tracebacks:
        verdict.broken.append(f"{tracebacks.total()} tracebacks on standard error")
        verdict.broken.extend([f"    {count} x {line}" for line, count in tracebacks.most_common(20)])
    if attacked.died:
        verdict.broken.append("the server ended")
    if attacked.num_unsent:
        verdict.broken.append(f"{attacked.num_unsent:,} requests were not sent before the time limit")
    if attacked.left_behind:
        verdict.broken.append(f"{attacked.left_behind:g} requests stayed in the engine after the attack")


def _grouped(found: Sequence[tuple[HostileRequest, Exchange]]) -> list[str]:
    """One line for each route, status and reply, with an example."""
    groups: dict[tuple[str, int | None, str], list[HostileRequest]] = {}
    for request, each in found:
        message = re.sub(r"\d+", "N", each.reply[:120].decode("utf-8", "replace"))
        groups.setdefault((request.route[:60], each.status, message), []).append(request)
    ordered = sorted(groups.items(), key=lambda each: -len(each[1]))
    return [
        f"{len(requests)} x {route} {status} {message!r}, such as {requests[0].kind}: {requests[0].shown[:300]!r}"
        for (route, status, message), requests in ordered[:30]
    ]


def _judge_times(attacked: AttackResult, samples: dict[str, list[Sample]], bounds: Bounds, verdict: Verdict) -> None:
    for kind, is_bounded in ((GAP, True), (HEALTH, True), (OWN, False)):
        given = samples.get(kind, [])
        quiet = Spread.of([each for each in given if overlap(each.window, attacked.quiet)])
        attack = [each for each in given if not overlap(each.window, attacked.quiet)]
        if kind == GAP:
            attack = [each for each in attack if not overlap(each.window, attacked.disturbed)]
        spread = Spread.of(attack)
        verdict.lines.extend([f"  {kind}, quiet:        {quiet}", f"  {kind}, under attack: {spread}"])
        if not is_bounded or not attack:
            continue
        allowed_worst = bounds.gap_worst_ms if kind == GAP else bounds.health_ms
        for name, growth_ms, allowed_ms in (
            ("p99", spread.p99_ms - quiet.p99_ms, bounds.gap_p99_ms if kind == GAP else bounds.health_ms),
            ("worst", spread.worst_ms - quiet.worst_ms, allowed_worst),
        ):
            if growth_ms > allowed_ms:
                verdict.broken.append(f"{name} of {kind} grew by {growth_ms:.0f} ms, allowed are {allowed_ms:.0f}")
        worst = sorted(attack, key=lambda each: -each.corrected_ms)[:NUM_SHOWN]
        for each in worst:
            if each.corrected_ms - quiet.worst_ms > allowed_worst:
                during = "; ".join(attacked.in_flight(each.window)[:NUM_SHOWN])
                cause = doing(samples, each.window)
                verdict.broken.append(f"    {each.corrected_ms:.0f} ms during {during}{cause and f' ({cause})'}")
    broken = [each for each in samples.get(BROKEN, []) if not overlap(each.window, attacked.disturbed)]
    if broken:
        during = "; ".join(attacked.in_flight(broken[0].window)[:NUM_SHOWN])
        verdict.broken.append(f"{len(broken)} watched streams ended early, the first during {during}")


def _is_genuine(request: HostileRequest, exchange: Exchange) -> bool:
    text = exchange.reply.decode("utf-8", "replace")
    return any(
        known.status == exchange.status and re.fullmatch(known.route, request.route) and known.reply in text
        for known in GENUINE_ERRORS
    )


def read_errors(file: Path | None) -> str:
    """Return the lines that a server has written to its standard error."""
    return "" if file is None else file.read_text(errors="replace")
