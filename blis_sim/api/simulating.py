"""`run` and `replay`: one simulation. `server`: a mock vLLM server as long as a `with` block runs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Unpack

from blis_sim.api.given import options_from_kwargs, signature_of, values_from_kwargs
from blis_sim.api.serve_settings import ServeSettings
from blis_sim.api.settings import ReplaySettings, RunSettings
from blis_sim.api.tables import Table
from blis_sim.options import options_from
from blis_sim.testing import Server, serving

if TYPE_CHECKING:
    from replay.output.findings import Outcome
    from replay.simulation.pool import Pool
    from replay.simulation.record import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and percentiles of a latency over a run, in milliseconds; 0 where nothing was measured."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a simulation.

    `metrics` is the document that the command prints with --json, and `requests` has a row for each request that
    arrived. TTFT and E2E are per request, and ITL is the time between any two tokens of a request.
    """

    metrics: Mapping[str, Any]
    ttft: Latency
    itl: Latency
    e2e: Latency
    notes: tuple[str, ...]
    """Notes on the settings and on the run, a line each."""
    outcome: "Outcome" = field(repr=False)
    """The run with all of its parts. Its attributes are not stable."""

    @property
    def num_requests(self) -> int:
        """Requests that arrived."""
        return len(self.outcome.simulated.requests)

    @property
    def num_completed(self) -> int:
        """Requests that were answered in full."""
        return int(self.metrics["completed_requests"])

    @property
    def duration_s(self) -> float:
        """Simulated seconds from the beginning to the last event."""
        return float(self.metrics["vllm_estimated_duration_s"])

    @property
    def requests_per_s(self) -> float:
        """Completed requests per simulated second."""
        return float(self.metrics["responses_per_sec"])

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per simulated second."""
        return float(self.metrics["tokens_per_sec"])

    @property
    def slo_attainment(self) -> float | None:
        """The share of requests within the targets, None without targets."""
        if not self.outcome.analysis_config.targets:
            return None
        return float(self.metrics.get("slo_attainment", 0.0))

    @cached_property
    def requests(self) -> Table:
        """Each request that arrived: lengths, latencies, its end, its instance."""
        return _requests(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with --json."""
        return dict(self.metrics)

    def to_pandas(self) -> Any:
        """Return the requests as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return self.requests.to_pandas()

    def to_arrow(self) -> Any:
        """Return the requests as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return self.requests.to_arrow()

    def __str__(self) -> str:
        return (
            f"{self.num_completed} of {self.num_requests} requests completed in {self.duration_s:.1f} s: "
            f"{self.requests_per_s:.2f} requests/s, {self.output_tokens_per_s:.1f} output tokens/s; p50 and p99: "
            f"TTFT {self.ttft.p50_ms:.1f}, {self.ttft.p99_ms:.1f} ms, ITL {self.itl.p50_ms:.1f}, "
            f"{self.itl.p99_ms:.1f} ms, E2E {self.e2e.p50_ms:.0f}, {self.e2e.p99_ms:.0f} ms"
        )


def run(**settings: Unpack[RunSettings]) -> RunResult:
    """Simulate a synthetic workload, as `blis run` does.

    Files that settings name are written; nothing is printed. Raises BlisError for bad input.
    """
    from blis_sim.options.progress import no_progress
    from replay.run_command import RunOptions, simulate_run

    options = options_from_kwargs(RunOptions, settings, "run")
    notes: list[str] = []
    return _result(options, simulate_run(options, notes.append, no_progress), notes)


def replay(trace: str | PathLike[str], **settings: Unpack[ReplaySettings]) -> RunResult:
    """Simulate a recorded trace, which is named by its header file, as `blis replay` does.

    Files that settings name are written; nothing is printed. Raises BlisError for bad input.
    """
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from blis_sim.options.progress import no_progress
    from replay.command import simulate_replay
    from replay.replay_options import ReplayOptions

    options = options_from_kwargs(ReplayOptions, settings, "replay", trace=fspath(trace))
    notes: list[str] = []
    outcome = simulate_replay(options, SeededTieBreaker(options.seed), notes.append, no_progress)
    return _result(options, outcome, notes)


run.__signature__ = signature_of(RunSettings, run)  # type: ignore[attr-defined]
replay.__signature__ = signature_of(ReplaySettings, replay)  # type: ignore[attr-defined]


def _result(options: Any, outcome: "Outcome", notes: list[str]) -> RunResult:
    from replay.output.findings import as_json
    from replay.output.report import write_files
    from replay.simulation.pool import pool_of

    found = outcome.findings()
    write_files(options.report, outcome, found)
    record, metrics = outcome.simulated.requests, as_json(found)
    return RunResult(
        metrics=metrics,
        ttft=_latency("ttft", metrics, pool_of(_known(record.ttft_us))),
        itl=_latency("itl", metrics, record.gaps.pool()),
        e2e=_latency("e2e", metrics, pool_of(record.e2e_us[record.is_completed])),
        notes=tuple(notes),
        outcome=outcome,
    )


def _latency(name: str, metrics: Mapping[str, Any], pool: "Pool") -> Latency:
    known = {f"{figure}_ms": float(metrics[f"{name}_{figure}_ms"]) for figure in ("mean", "p90", "p95", "p99")}
    return Latency(p50_ms=pool.percentile_ms(50), **known)


def _known(column_us: "Ints") -> "Ints":
    from replay.simulation.record import NEVER

    known: Ints = column_us[column_us != NEVER]
    return known


def _requests(outcome: "Outcome") -> Table:
    requests = list(outcome.simulated.requests)
    return Table(
        {
            "request_id": [each.id for each in requests],
            "arrived_at_s": [each.arrived_at / 1e6 for each in requests],
            "outcome": ["unfinished" if each.outcome is None else each.outcome.value for each in requests],
            "prompt_tokens": [each.input_tokens for each in requests],
            "output_tokens": [each.output_tokens for each in requests],
            "ttft_ms": [_ms(each.ttft_us) for each in requests],
            "mean_itl_ms": [each.itl_mean_us / 1000 if each.is_completed else None for each in requests],
            "e2e_ms": [_ms(each.e2e_us) for each in requests],
            "scheduling_delay_ms": [_ms(each.scheduling_delay_us) for each in requests],
            "instance": [each.instance if each.instance >= 0 else None for each in requests],
            "slo_class": [each.row.slo_class for each in requests],
            "tenant_id": [each.row.tenant_id for each in requests],
            "session_id": [each.row.session_id for each in requests],
        }
    )


def _ms(value_us: int | None) -> float | None:
    return None if value_us is None else value_us / 1000


_SERVER_DEFAULTS: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "enable_fault_control": True}


@contextmanager
def server(model: str | PathLike[str] = "", /, **settings: Unpack[ServeSettings]) -> Iterator[Server]:
    """Run `blis serve` in a process of its own on a free port of this host; it ends with the block.

    Raises BlisError for bad input, and ServerError when the server ends before its port is open.
    """
    from mockserve.options.serve import ServeOptions

    (values,) = values_from_kwargs([ServeOptions], settings, "server")
    for name in _SERVER_DEFAULTS:
        if name in values:
            raise TypeError(f"server() chooses the {name}: read the address from the url of the server")
    values |= {"model_argument": fspath(model), **_SERVER_DEFAULTS}
    options_from(ServeOptions, **values)  # which raises OptionError here, not in the process
    with serving(["-m", "blis_sim.testing"], json.dumps(values).encode()) as running:
        yield running


server.__signature__ = signature_of(ServeSettings, server)  # type: ignore[attr-defined]
