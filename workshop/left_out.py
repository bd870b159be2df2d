"""How well each recording of a server is predicted by coefficients learned from all others.

    python -m workshop.left_out RECORDINGS [--only NAME ...] [--phases N] [--budget N] [--intervals DRAWS]
                                  [--write FILE]

RECORDINGS is a folder with `train` and `server_config.json`, as for `accuracy.py`. One fit learns from all recordings;
each fit without one of them starts from its answer and goes on for a few rounds, which costs a tenth of a fit from the
start. The recordings that are left out never enter those rounds. Where the client had a cap on requests in flight,
requests are sent by schedule and cap, in learning as in predicting.

The table has two lines for each recording: a single run, and the mean of several phases of the engine's steps. `lone`
is the error of the mean TTFT of the requests that found the server idle and stayed alone until their first token.
With `--intervals` a further line says how many figures lie within the 90 % intervals of so many draws. `--write`
replaces this section of a page, such as `docs/accuracy.md`, and keeps all others.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.fit.estimate import Estimate
from calibrate.fit.learn import Budget, learn, relearn
from calibrate.fit.recording import Recording, recording_of
from calibrate.fit.terms import FittedDeployment, Learnable
from traces import read_itl, read_trace
from traces.client_cap import client_cap_of
from workshop.accuracy import PHASES, Score, options_of, predict, table
from workshop.coverage import figures_inside
from workshop.ending import run_command
from workshop.sections import write_sections

CAPPED_PHASES = 2
"""Phases for recordings of clients with a cap, which are long, and in which phases matter little."""
LEAST_LONE = 10
"""With fewer lone requests the error of their mean is chance."""
LONE_PHASES = 4
BUDGET = 24_000
"""Requests in each of the last rounds of a fit."""

SECTION = """## Each recording, predicted from the others

Coefficients learned from the other recordings of `train` predict each in one run. The second line has {} phases, or
two for recordings with a cap, which are sent by schedule and cap. `lone` is the error of the mean TTFT of requests that
found the server idle and stayed alone until their first token. The rows are those of `python -m workshop.left_out
RECORDINGS --budget {} --write docs/accuracy.md`, with rounds of so many requests.
"""
COVERAGE = """\
There are {} figures: mean, p50, p90 and p99 of TTFT, E2E and ITL of {} recordings below saturation. {} of them lie
within their 90 % intervals of {} draws. Figures of one recording are right or wrong together.
"""
_NUMBERS = {2: "two", 4: "four", 8: "eight"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording on disk, and what is learned from it."""

    name: str
    header: Path
    recording: Recording


@dataclass(frozen=True, slots=True)
class Settings:
    """The recordings to leave out (none: each), phases and draws of a prediction, and requests in a round of a fit."""

    only: Sequence[str]
    num_phases: int
    num_requests: int
    num_draws: int


def main() -> int:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="leave out only these, each in turn")
    parser.add_argument("--phases", type=int, default=PHASES)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--intervals", type=int, default=0)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    server = json.loads((arguments.recordings / "server_config.json").read_text())
    deployment = resolve(options_of(server, "vllm", None))
    recorded = recordings_of(arguments.recordings / "train", deployment)
    settings = Settings(arguments.only, arguments.phases, arguments.budget, arguments.intervals)
    text = "\n".join(_report(recorded, deployment, settings))
    sys.stdout.write(text)
    if arguments.write is not None:
        write_sections(arguments.write, text)
    return 0


def recordings_of(folder: Path, deployment: Deployment) -> list[Recorded]:
    """Read every recording in a folder, each with the cap that shows in it."""
    found = []
    for header in sorted(folder.glob("*/trace.yaml")):
        trace = read_trace(header, distinct=True)
        cap = client_cap_of(trace.rows)
        itl_path = header.with_name("trace.itl.csv.gz")
        chunks = read_itl(itl_path) if itl_path.exists() else {}
        max_concurrency = None if cap is None else cap.max_concurrency
        recording = recording_of(trace, deployment.model.name, deployment.config, chunks, max_concurrency)
        found.append(Recorded(header.parent.name, header, recording))
    return found


def _report(recorded: Sequence[Recorded], deployment: Deployment, settings: Settings) -> Iterator[str]:
    deployed = FittedDeployment(deployment.model, deployment.gpu, deployment.tp)
    budget = Budget(settings.num_requests // 3, settings.num_requests, 3 * settings.num_requests)
    learned = learn([each.recording for each in recorded], deployed, deployment.config, budget=budget)
    sys.stderr.write(_described(learned.deployed, learned.estimate))
    yield SECTION.format(_NUMBERS.get(settings.num_phases, settings.num_phases), settings.num_requests)
    scores: list[Score] = []
    inside: list[list[bool]] = []
    for left_out in recorded:
        if settings.only and left_out.name not in settings.only:
            continue
        others = [each.recording for each in recorded if each is not left_out]
        chosen, estimate = relearn(others, deployed, deployment.config, learned.estimate, budget=budget)
        sys.stderr.write(f"without {left_out.name}: {_described(chosen, estimate)}")
        predicted = replace(deployment, latency=chosen.latency(estimate.values))
        lone = lone_error(left_out.recording, predicted, LONE_PHASES)
        name = left_out.name if lone is None else f"{left_out.name} (lone {lone:+.1%})"
        num_phases = settings.num_phases
        if left_out.recording.max_concurrency is not None:
            num_phases = min(num_phases, CAPPED_PHASES)
        scores += [predict(name, left_out.header, predicted, num) for name, num in ((name, 1), ("", num_phases))]
        is_below_saturation = left_out.recording.max_concurrency is None
        if settings.num_draws and is_below_saturation and isinstance(chosen, FittedDeployment):
            inside.append(figures_inside(left_out.recording, chosen, estimate, deployment.config, settings.num_draws))
            sys.stderr.write(f"{sum(inside[-1])} of {len(inside[-1])} figures inside their intervals\n")
    yield from table(scores)
    if inside:
        yield COVERAGE.format(sum(map(len, inside)), len(inside), sum(map(sum, inside)), settings.num_draws)


def _described(deployed: Learnable, estimate: Estimate) -> str:
    values = zip(deployed.terms.names, estimate.values.tolist(), strict=True)
    listed = ", ".join(f"{name} {value:.4g}" for name, value in values)
    return f"{listed}; growth_requests {deployed.growth_requests}\n"


def lone_error(recording: Recording, deployment: Deployment, num_phases: int) -> float | None:
    """Return the relative error of the mean TTFT of lone requests; None with hardly any."""
    lone = lone_requests(recording)
    if lone.sum() < LEAST_LONE:
        return None
    means = [_mean_ttft_us(recording, deployment, deployment.latency, phase, lone) for phase in range(num_phases)]
    return float(np.mean(means) / recording.ttft_us[lone].mean() - 1)


def _mean_ttft_us(
    recording: Recording, deployment: Deployment, latency: LatencyModel, phase: int, chosen: npt.NDArray[np.bool_]
) -> float:
    record = recording.simulated(Engine(deployment.config, PhaseShifted(latency, phase), reports_steps=False))
    place_of = {request_id: place for place, request_id in enumerate(record.ids)}
    ttft_us = record.ttft_us[[place_of[arrival.request.id] for arrival in recording.arrivals]]
    return float(ttft_us[chosen].mean())


def lone_requests(recording: Recording) -> npt.NDArray[np.bool_]:
    """Return which requests were sent with none in flight, and got their first token before the next was sent."""
    sent = np.array([arrival.at for arrival in recording.arrivals], np.float64)
    first, last = sent + recording.ttft_us, sent + recording.ttft_us + np.nan_to_num(recording.decode_us)
    ended_before = np.maximum.accumulate(np.concatenate([[-np.inf], np.nan_to_num(last[:-1], nan=np.inf)]))
    next_sent = np.concatenate([sent[1:], [np.inf]])
    lone: npt.NDArray[np.bool_] = np.isfinite(first) & (sent > ended_before) & (next_sent > first)
    return lone if recording.max_concurrency is None else np.zeros_like(lone)


if __name__ == "__main__":
    run_command(main)
