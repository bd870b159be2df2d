"""Requests through a simulated engine at given instants of virtual time, and the answer of a benchmark."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.datasets import SampleRequest
from blis_sim.engine.config import EngineConfig, refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup, new_ranks
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options.printing import printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.report import Report
from blis_sim.report.tables import flat
from replay.arrivals import arrivals_of_rows
from replay.simulation.record import Record
from replay.simulation.simulate import simulate
from traces import TraceRow
from traces.text_file import write_text


@dataclass(frozen=True, slots=True)
class OfflineEngine:
    """An engine that computes batches of requests, one after the other."""

    deployment: Deployment
    simulation: Engine | RankGroup
    config: EngineConfig

    def run(self, samples: Sequence[SampleRequest], first_number: int = 0) -> Record:
        """Run all samples, which arrive together once the batch before has ended, until all of them have ended.

        Requests are distinguished by their numbers, of which no two runs may have the same.
        """
        now = self.simulation.now
        rows = [
            TraceRow(
                request_id=number,
                arrival_time_us=0 if now is None else now + 1,
                input_tokens=sample.input_tokens,
                output_tokens=sample.output_tokens,
                prefix_group=sample.prefix_group,
                prefix_length=sample.prefix_tokens,
            )
            for number, sample in enumerate(samples, first_number)
        ]
        return simulate(self.simulation, arrivals_of_rows(rows, self.config)).requests


def offline_engine(program: str, options: DeploymentOptions) -> OfflineEngine:
    """Return an engine that takes many steps at once where possible; notes on its settings go to stderr.

    Raises BlisError.
    """
    deployment = resolve(options)
    for note in deployment.notes:
        sys.stderr.write(f"{program}: {note}\n")
    if deployment.rank is not None and deployment.has_own_ranks:
        new_engine = partial(Engine, reports_steps=not deployment.shares_experts)
        ranks = new_ranks(deployment.rank, deployment.latency, deployment.dp, new_engine, deployment.shares_experts)
        return OfflineEngine(deployment, ranks, deployment.rank)
    return OfflineEngine(
        deployment, Engine(deployment.config, deployment.latency, reports_steps=False), deployment.config
    )


def check_fits(samples: Sequence[SampleRequest], config: EngineConfig) -> None:
    """Raise BenchError for a request that is longer than the engine allows."""
    for sample in samples:
        if refusal_reason(config, sample.prompt_tokens, sample.output_tokens) is not None:
            raise BenchError(
                f"a request of {sample.prompt_tokens} + {sample.output_tokens} tokens is above the longest context,"
                f" {config.limit_tokens} tokens: shorten the prompts or raise --max-model-len"
            )


def longest_s(record: Record) -> float:
    """Return the longest time of a request, in seconds."""
    return float(record.e2e_us.max()) / 1e6


def report_results(
    program: str, options: Any, offline: OfflineEngine, results: Mapping[str, Any], lines: Sequence[str]
) -> None:
    """Write the results, if a file is given, and print them; `lines` are what vLLM prints. Raises TraceError."""
    deployment = offline.deployment

    def origin() -> Provenance:
        return Provenance(
            command=command_line(program, options),
            model=deployment.model.name,
            gpu=deployment.gpu.name,
            gpus_per_instance=deployment.num_gpus,
            engine=deployment.config.engine,
            latency_model=deployment.latency_name,
            step_error=deployment.sureness.step_error,
            sureness=deployment.sureness.as_json,
            inputs=input_hashes(options),
        )

    report = Report(
        title=f"{program.removeprefix('blis ').capitalize()} of",
        origin=origin,
        data=lambda: results,
        remarks=lambda: lines,
        rows=lambda: [{name: each for name, each in flat(results).items() if name != "latencies"}],
    )
    try:  # before printing, since the reader of the output may have gone
        if options.output_json is not None:
            write_text(Path(options.output_json), json.dumps(results, indent=4))
    finally:
        report.print(printed_format(options))
