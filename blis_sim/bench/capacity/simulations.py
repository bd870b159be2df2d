"""Simulations of a plan: computed in rounds, kept in a file for later plans, and judged by latency targets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.runner.commands import digest_of, with_whole_paths
from blis_sim.bench.runner.simulate import Job, Outcome, compute
from blis_sim.bench.runner.workers import Pool, RayPool
from blis_sim.options.provenance import blis_version
from traces.append_file import AppendFile, complete_lines, open_with_header
from traces.text_file import naming_write_errors

SERVED = "served"
"""The figure that is missed when requests were left unserved."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a simulation by the targets.

    `loads` has, for each target, the figure as a share of its limit; above 1 the target is missed. `worst` names the
    figure with the largest share, or `SERVED` when requests were rejected, timed out or never completed.
    """

    loads: Mapping[str, float]
    worst: str

    @property
    def load(self) -> float:
        """The share of the worst figure; infinite when requests were left unserved."""
        return inf if self.worst == SERVED else self.loads[self.worst]

    @property
    def is_met(self) -> bool:
        """Whether every target is met."""
        return self.load <= 1

    @property
    def headroom(self) -> float:
        """The share of the limit that the worst figure leaves free, negative where the limit is exceeded."""
        return 1 - self.load


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits in milliseconds by the figure of a row, such as `ttft_p99_ms`. At least one."""

    limits_ms: Mapping[str, float]

    def judge(self, outcome: Outcome) -> Judgement:
        """Compare the figures of a simulation with the limits."""
        figures = outcome.figures
        if outcome.error or not figures.get("completed_requests"):
            return Judgement({}, SERVED)
        loads = {name: (figures[name] or 0.0) / limit_ms for name, limit_ms in self.limits_ms.items()}
        is_complete = figures["completed_requests"] == figures["injected_requests"]
        if not is_complete or figures["rejected_requests"] or figures["timed_out_requests"]:
            return Judgement(loads, SERVED)
        return Judgement(loads, max(loads, key=loads.__getitem__))

    def tightened(self, factor: float) -> "Targets":
        """Return the targets with each limit divided by `factor`."""
        return Targets({name: limit_ms / factor for name, limit_ms in self.limits_ms.items()})


_HEADER = json.dumps({"file": "simulations of blis plan"})


@dataclass(slots=True)
class Simulations:
    """The outcomes of simulations so far, by key, and the pool that computes further simulations."""

    command: str
    pool: Pool | RayPool
    known: dict[str, Outcome] = field(default_factory=dict)
    log: AppendFile | None = None
    num_computed: int = 0

    def outcomes(self, settings: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Return the outcome of each of the settings, and simulate unknown ones in parallel. Raises BenchError."""
        keys = [f"{blis_version()}/{digest_of(self.command, each)}" for each in settings]
        missing = {key: each for key, each in zip(keys, settings, strict=True) if key not in self.known}
        if isinstance(self.pool, RayPool):  # its machines have other folders
            missing = {key: with_whole_paths(each) for key, each in missing.items()}
        for job, outcome in self.pool.each(compute, [Job(key, self.command, each) for key, each in missing.items()]):
            self.known[job.key] = outcome
            self.num_computed += 1
            if outcome.is_unexpected:
                raise BenchError(f"a simulation failed: {outcome.error}; its settings: {_text(job.settings)}")
            if self.log is not None:
                self.log.write(_line(job.key, outcome))
        return [self.known[key] for key in keys]


@contextmanager
def simulations(command: str, pool: AbstractContextManager[Pool | RayPool], path: str | None) -> Iterator[Simulations]:
    """Open the pool and the file of outcomes; a path of None keeps no outcomes. Raises BlisError."""
    with ExitStack() as stack:
        known, log = {}, None
        if path is not None:
            known = _read(Path(path))
            stack.enter_context(naming_write_errors(Path(path)))
            kept = [_line(key, outcome) for key, outcome in known.items()]
            log = open_with_header(Path(path), _HEADER, kept, is_exclusive=True)
            stack.callback(log.close)
        yield Simulations(command, stack.enter_context(pool), known, log)


def _line(key: str, outcome: Outcome) -> str:
    return json.dumps({"key": key, "figures": dict(outcome.figures), "error": outcome.error}) + "\n"


def _read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that a file has; a last line that was cut short is none. Raises BenchError."""
    if not path.is_file():
        return {}
    found: dict[str, Outcome] = {}
    header, *lines = complete_lines(path) or [f"{_HEADER}\n"]
    if header.rstrip() != _HEADER:
        raise BenchError(f"{path} row 1: expected {_HEADER}, got {header[:60]!r}: give another --output")
    for number, line in enumerate(lines, start=2):
        try:
            row = json.loads(line)
            found[row["key"]] = Outcome(row["figures"], row["error"])
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{path} row {number}: expected a simulation of blis plan, got {line[:60]!r}: give another --output"
            ) from error
    return found


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
