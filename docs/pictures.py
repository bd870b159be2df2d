"""Draws the pictures of the documentation with the product itself.

    python docs/pictures.py [--all] [--recording FOLDER] [NAME.svg ...]

Pictures of simulations are the same every time. Names choose among them. `--all` adds what takes minutes or a quiet
machine: `closed-loop.svg` from a recording of `examples/demo.py` (or the folder of an earlier one, with `--recording`),
`engine-cost.svg` from `workshop/engine_cost.py`, and `calibration-example.html` from a recording of a real server in
tables of the tests.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from blis_sim.bench.compare_command import rewritten
from blis_sim.bench.compare_options import CompareOptions
from blis_sim.bench.comparison import panels_of, sides_of, simulate_configuration, workload_of
from blis_sim.bench.points import Job, Row, compute, plan_of
from blis_sim.bench.sweep_report import draw
from blis_sim.cli.main import run
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.events import Scheduled, StepDone
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from blis_sim.report.figures import COLORS, DARK_COLORS, GRID, INK, MUTED, Panel, draw_panels
from calibrate.compare import Network, latencies, pair, rtt_us_of
from traces import read_results, read_trace

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "blis", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"})
from matplotlib import pyplot as plt  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT / "docs" / "pictures"

ARRIVALS = ((0, "A", 512, 12), (40_000, "B", 1024, 7), (66_000, "C", 512, 6))
"""Instant in microseconds, name, prompt tokens, output tokens."""

STATES = {
    "before the queue": "#d9d9d9",
    "waits for the step under way": "#a6a6a6",
    "waits for the step composed without it": "#d62728",
    "prefill": "#ff9f40",
    "decode": "#4f81bd",
}


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of a request, in microseconds."""

    request: str
    state: str
    start: int
    end: int


def spans(scheduling: str) -> Iterator[Span]:
    """The lives of the requests in `ARRIVALS` on one H100 with qwen3-14b; each prompt takes one step."""
    deployment = resolve(DeploymentOptions(model="qwen3-14b", engine=scheduling))
    engine = Engine(deployment.config, deployment.latency)
    arrivals = [
        (at, Request(name, input_tokens, output_tokens, UniqueBlocks(name), output_tokens))
        for at, name, input_tokens, output_tokens in ARRIVALS
    ]
    composed: dict[str, int] = {}
    for event in run_virtual(engine, arrivals):
        if isinstance(event, Scheduled):
            composed[event.sequence.request.id] = event.at
        elif isinstance(event, StepDone):
            for sequence in event.emitted:
                name = sequence.request.id
                if sequence.tokens_at(event.index) > 1:
                    yield Span(name, "decode", event.started_at, event.at)
                    continue
                assert sequence.queued_at is not None
                yield Span(name, "before the queue", sequence.arrived_at, sequence.queued_at)
                yield Span(name, "waits for the step under way", sequence.queued_at, composed[name])
                yield Span(name, "waits for the step composed without it", composed[name], event.started_at)
                yield Span(name, "prefill", event.started_at, event.at)


def draw_schedulings(path: Path) -> None:
    """Both schedulings of the same requests, one above the other."""
    figure, axes = plt.subplots(2, 1, figsize=(8, 4.2), sharex=True, layout="constrained")
    for axis, scheduling in zip(axes, ("blis", "vllm"), strict=True):
        _draw_spans(axis, list(spans(scheduling)))
        axis.set_title(f"--engine {scheduling}", loc="left", family="monospace", fontsize=9)
    axes[1].set_xlabel("ms since the first arrival")
    patches = [mpl.patches.Patch(color=color, label=state) for state, color in STATES.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    _save(figure, path)


def _draw_spans(axis: Any, drawn: Sequence[Span]) -> None:
    names = [name for _, name, _, _ in ARRIVALS]
    for span in drawn:
        row = names.index(span.request)
        axis.barh(
            row,
            (span.end - span.start) / 1000,
            left=span.start / 1000,
            color=STATES[span.state],
            edgecolor="white",
            linewidth=0.6,
            height=0.7,
        )
        if span.state == "prefill":
            first_us = span.end - ARRIVALS[row][0]
            axis.annotate(
                f"first token after {first_us / 1000:.1f} ms", (span.end / 1000 + 1, row + 0.42), fontsize=7, va="top"
            )
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.3, -0.6)
    axis.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """An example of `blis sweep` on a page."""

    flags: str
    varied: tuple[str, ...]
    gpu_cost_per_hour: float | None = None


SWEEPS = {
    "frontier.svg": Sweep(
        "--model qwen/qwen3-14b",
        ("rate=2,4,16", "tensor_parallel_size=1,2"),
        gpu_cost_per_hour=2.5,
    ),
    "engines.svg": Sweep(
        "--model qwen/qwen3-14b --latency-model fitted --max-model-len 4096 --num-requests 120 --arrival poisson",
        ("engine=sarathi,orca,vllm", "rate=2,4,8,16"),
    ),
}
"""Pictures of `blis sweep` by name, with its arguments."""


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """The picture of a sweep on its page."""
    plan = plan_of(tuple(sweep.flags.split()), sweep.varied, None)
    rows = [
        Row(str(point.number), point, compute(Job("", plan.simulation.name, point.settings))) for point in plan.points()
    ]
    draw(rows, str(path), gpu_cost_per_hour=sweep.gpu_cost_per_hour)
    sys.stdout.write(f"{path}\n")


_GATED_DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4, "draft_cost": 0.1, "gates": {}}'

COMPARISONS: Mapping[str, Sequence[str]] = {
    "urgency.svg": (
        *("--names", "fifo,urgency,urgency and gap", "--workload-spec", "examples/mixed-priority.yaml"),
        *("--", "--max-num-seqs", "64"),
        *("--", "--max-num-seqs", "64", "--priority-policy", "slo-urgency"),
        *("--", "--max-num-seqs", "64", "--priority-policy", "slo-urgency", "--preemption-policy", "gap"),
    ),
    "routing.svg": (
        *("--names", "round robin,cache", "--workload-spec", "examples/shared-documents.yaml"),
        *("--", "--num-instances", "4"),
        *("--", "--num-instances", "4", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1"),
        *("--snapshot-refresh-interval", "0", "--cache-signal-delay", "0"),
    ),
    "drafts.svg": (
        *("--names", "none,gated", "--workload-spec", "examples/mixed-priority.yaml"),
        *("--", "--max-num-seqs", "256"),
        *("--", "--max-num-seqs", "256", "--speculative-config", _GATED_DRAFTS),
        *("--speculative-acceptance-rate", "0.85"),
    ),
    "adaptive-burst.svg": ("--baseline", "fifo", "--workload", "burst", "--duration", "15"),
}
"""Pictures of `blis compare` by name, with its arguments."""


SHOWN = ("Output tokens per second", "p99 TTFT by arrival", "Requests waiting", "Deadlines missed so far")
"""The panels of a comparison that a page shows."""


def draw_comparison(arguments: Sequence[str], path: Path) -> None:
    """The picture of a comparison on its page."""
    words = parse_command_line(CompareOptions, rewritten(list(arguments)))
    options = options_from(CompareOptions, **words.values)
    sides = sides_of(options).covered
    panels = panels_of(sides, [simulate_configuration(side, workload_of(options, 0)) for side in sides])
    draw_panels([panel for panel in panels if panel.title in SHOWN], str(path))
    sys.stdout.write(f"{path}\n")


def draw_closed_loop(recording: Path, path: Path) -> None:
    """TTFT of a served recording against its replay: request by request, and as distributions."""
    trace = read_trace(recording / "trace.yaml")
    pairing = pair(trace, read_results(recording / "results.json"), 0)
    times = latencies(pairing, Network(rtt_us_of(trace.header)))
    real, simulated = times.real_ttft_us / 1000, times.sim_ttft_us / 1000

    def each_request(axes: "Axes") -> None:
        limits = (min(real.min(), simulated.min()) - 1, max(real.max(), simulated.max()) + 1)
        axes.plot(limits, limits, color="#a6a6a6", linewidth=0.8)
        axes.scatter(real, simulated, s=6, alpha=0.7, linewidths=0, color=COLORS[0])
        axes.set(xlim=limits, ylim=limits)

    def distributions(axes: "Axes") -> None:
        share = np.arange(1, len(real) + 1) / len(real)
        axes.plot(np.sort(real), share, label="served")
        axes.plot(np.sort(simulated), share, label="replayed")
        axes.set(ylim=(0, 1))

    panels = [
        Panel(title="TTFT of each request", x_label="served, ms", y_label="replayed, ms", draw=each_request),
        Panel(title="TTFT, distributions", x_label="ms", y_label="share of requests", draw=distributions),
    ]
    draw_panels(panels, str(path))
    sys.stdout.write(f"{path}\n")


REAL = "real_qwen3_14b_h100_8rps_first400"
"""A recording of vLLM with Qwen3-14B on one H100 at 8 requests per second, in the tables of the tests."""


def write_calibration(path: Path) -> None:
    """Write the page about how well a replay predicts the recording of a real server."""
    sys.path.insert(0, str(PROJECT))
    from tests.reference.tables import write_files

    with TemporaryDirectory() as folder:
        write_files("recorded", Path(folder))
        # In the folder of the recording, so that the page names no folder of this machine.
        with chdir(Path(folder) / "tools" / "real"), redirect_stdout(open(os.devnull, "w")):
            files = [f"{REAL}.yaml", "--sim-results", "results.json", "--html", path.name]
            simulated = [f"{REAL}.yaml", "--model", "qwen/qwen3-14b", "--results-path", "results.json"]
            if run(["replay", *simulated]) or run(["calibrate", *files]):
                raise SystemExit(f"{path} cannot be written")
            path.write_bytes(Path(path.name).read_bytes())
    sys.stdout.write(f"{path}\n")


def draw_all(recording: Path | None, output: Path) -> None:
    """Draw what takes minutes or a quiet machine."""
    with TemporaryDirectory() as folder:
        if recording is None:
            subprocess.run([sys.executable, PROJECT / "examples" / "demo.py", "--output", folder], check=True)
        draw_closed_loop(recording or Path(folder), output / "closed-loop.svg")
    cost: list[str | Path] = [
        sys.executable,
        PROJECT / "workshop" / "engine_cost.py",
        "--plot",
        output / "engine-cost.svg",
    ]
    subprocess.run(cost, check=True)
    write_calibration((output.parent if output == FOLDER else output) / "calibration-example.html")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    sys.stdout.write(f"{path}\n")


_DARK = {
    **dict(zip(COLORS, DARK_COLORS, strict=True)),
    "#ffffff": "#1e2129",
    "#000000": "#bfc1c6",
    INK: "#e6e7e8",
    MUTED: "#a3a7ab",
    GRID: "#3b4046",
}
"""The colour in dark surroundings of each colour of a picture; the others are seen in both."""


def follow_the_scheme(path: Path) -> None:
    """Give a picture a style for dark surroundings. Programs that know no such style show the light one."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in _DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}text:not([style*=fill]){{fill:{_DARK[INK]}}}}}</style>"
    text = re.sub(r"<style>@media.*?</style>", "", path.read_text(encoding="utf-8"))
    path.write_text(text.replace("<defs>", f"<defs>{style}", 1), encoding="utf-8")


def main() -> int:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--recording", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to draw to")
    parser.add_argument("names", nargs="*", help="pictures of simulations to draw, every one by default")
    arguments = parser.parse_args()
    names = arguments.names or ["schedulings.svg", *SWEEPS, *COMPARISONS]
    if "schedulings.svg" in names:
        draw_schedulings(arguments.output / "schedulings.svg")
    for name in filter(names.__contains__, SWEEPS):
        draw_sweep(SWEEPS[name], arguments.output / name)
    for name in filter(names.__contains__, COMPARISONS):
        draw_comparison(COMPARISONS[name], arguments.output / name)
    if arguments.all:
        draw_all(arguments.recording, arguments.output)
    for path in arguments.output.glob("*.svg"):
        follow_the_scheme(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
