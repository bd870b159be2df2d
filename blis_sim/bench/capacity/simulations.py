"""Simulations of a plan: computed on all cores in rounds, and kept in a file from which a later plan goes on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.runner.commands import digest_of, with_whole_paths
from blis_sim.bench.runner.simulate import Job, Outcome, compute
from blis_sim.bench.runner.workers import Pool, RayPool
from blis_sim.options.provenance import blis_version
from traces.append_file import AppendFile, open_with_header, whole_lines
from traces.text_file import naming_write_errors

_HEADER = json.dumps({"file": "simulations of blis plan"})


@dataclass(slots=True)
class Simulations:
    """The outcomes of the simulations so far, by key, and the processes or the cluster that compute further ones."""

    command: str
    pool: Pool | RayPool
    known: dict[str, Outcome] = field(default_factory=dict)
    log: AppendFile | None = None
    num_computed: int = 0

    def outcomes(self, settings: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Simulate each of the settings, those with a known outcome excepted, all at once. Raises BenchError."""
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
    """Open the pool and the file of outcomes; without a path outcomes are not kept. Raises BlisError."""
    with ExitStack() as stack:
        known, log = {}, None
        if path is not None:
            known = _read(Path(path))
            stack.enter_context(naming_write_errors(Path(path)))
            kept = [_line(key, outcome) for key, outcome in known.items()]
            log = open_with_header(Path(path), _HEADER, kept, is_sole=True)
            stack.callback(log.close)
        yield Simulations(command, stack.enter_context(pool), known, log)


def _line(key: str, outcome: Outcome) -> str:
    return json.dumps({"key": key, "figures": dict(outcome.figures), "error": outcome.error}) + "\n"


def _read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that a file has; a last line that was cut short is none. Raises BenchError."""
    if not path.is_file():
        return {}
    found: dict[str, Outcome] = {}
    header, *lines = whole_lines(path) or [f"{_HEADER}\n"]
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
