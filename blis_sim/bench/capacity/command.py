"""`blis plan`: the cheapest deployment that meets latency targets under a load."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_sim.bench.runner.commands import (
    check_cluster,
    processes_option,
    ray_address_option,
    ray_option,
    simulation_option,
)
from blis_sim.options import OptionError, check_options, check_outputs, option
from blis_sim.options.extras import check_page, check_plot
from traces.slo import parse_duration_ms

if TYPE_CHECKING:
    from blis_sim.bench.capacity.answer import CapacityPlan, CapacityQuery
    from blis_sim.bench.runner.plan import Plan
    from blis_sim.options.progress import NoteCallback
    from blis_sim.options.provenance import Provenance

SHAPES = ("aggregated", "pd")
_PERCENTILES = ("p90", "p95", "p99")
_SEARCHED = (
    "hardware",
    "tp",
    "pp",
    "num_instances",
    "prefill_instances",
    "decode_instances",
    "prefill_tp",
    "decode_tp",
)


def _target(latency: str, percentile: str) -> Any:
    text = f"Longest {latency} at the {percentile.removeprefix('p')}th percentile, such as 40ms or 1s."
    return option(None, text, metavar="DURATION", heading="Targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The settings of `blis plan`. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "Flags of blis run, or replay and its flags: the model, the load, engine settings; they may stand anywhere. "
        "What they set is not searched."
    )
    ttft_p90: str | None = _target("time to first token", "p90")
    ttft_p95: str | None = _target("time to first token", "p95")
    ttft_p99: str | None = _target("time to first token", "p99")
    itl_p90: str | None = _target("time between tokens", "p90")
    itl_p95: str | None = _target("time between tokens", "p95")
    itl_p99: str | None = _target("time between tokens", "p99")
    e2e_p90: str | None = _target("time of a request", "p90")
    e2e_p95: str | None = _target("time of a request", "p95")
    e2e_p99: str | None = _target("time of a request", "p99")
    gpus: tuple[str, ...] = option(("H100", "H200", "B200"), "GPU types to try.", heading="Search")
    tp_sizes: tuple[int, ...] = option((1, 2, 4, 8), "Tensor parallelism to try.")
    pp_sizes: tuple[int, ...] = option((1,), "Pipeline stages to try.")
    shapes: tuple[str, ...] = option(
        SHAPES, "Shapes to try: aggregated instances, or pools of prefill and decode instances (pd).", choices=SHAPES
    )
    precisions: tuple[str, ...] = option(
        ("checkpoint", "fp8"),
        "Weights to try: those of the checkpoint, or quantised to fp8 as vLLM does while it loads them.",
        choices=("checkpoint", "fp8"),
    )
    step_tokens: tuple[int, ...] = option(
        (0, 2048, 512), "Values of --max-num-batched-tokens to try; 0 is vLLM's default.", metavar="LIST"
    )
    max_gpus: int = option(1024, "Most GPUs of a deployment.", at_least=1, at_most=10_000)
    prices: str | None = option(
        None, "YAML file with dollars per GPU-hour, such as gpus: {H100: 2.49} (default: a table that ships).",
        metavar="FILE",
    )  # fmt: skip
    processes: int | None = processes_option()
    ray: bool = ray_option()
    ray_address: str | None = ray_address_option()
    output: str | None = option(
        None,
        "Keep the simulations in this file (JSON lines); a later plan reuses them.",
        flags=("--output", "-o"),
        metavar="FILE",
        writes={"": "simulations"},
        heading="Output",
    )
    plot: str | None = option(
        None,
        "Draw the costs, and the latencies of the cheapest deployment (.png, .svg or .pdf; needs matplotlib).",
        metavar="FILE",
        writes={"": "picture"},
    )
    html: str | None = option(
        None,
        "Write the plan as one page with table, pictures and origin (HTML; needs matplotlib).",
        metavar="FILE",
        writes={"": "plan page"},
    )
    manifests: str | None = option(
        None, "Write Kubernetes manifests of the cheapest deployment into this folder.", metavar="DIR"
    )
    format: str = option("table", "Print a table for people, or one JSON object.", choices=("table", "json"))

    def __post_init__(self) -> None:
        check_options(self)
        check_plot("--plot", self.plot)
        check_page("--html", self.html)
        check_cluster(self.ray, self.ray_address, self.processes)
        _ = self.limits_ms  # making it checks it
        for name in ("gpus", "tp_sizes", "pp_sizes", "shapes", "precisions", "step_tokens"):
            values = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            if not values or len(set(values)) < len(values):
                raise OptionError(f"{flag} must name at least one value, and each once, got {values!r}")
        for name, least in (("tp_sizes", 1), ("pp_sizes", 1), ("step_tokens", 0)):
            wrong = [each for each in getattr(self, name) if each < least]
            if wrong:
                raise OptionError(f"--{name.replace('_', '-')} must be at least {least}, got {wrong[0]}")

    @property
    def limits_ms(self) -> Mapping[str, float]:
        """The limits by the figure of a row that they hold for. Raises OptionError."""
        limits = {}
        for latency in ("ttft", "itl", "e2e"):
            for percentile in _PERCENTILES:
                text = getattr(self, f"{latency}_{percentile}")
                if text is not None:
                    limits[f"{latency}_{percentile}_ms"] = _limit_ms(f"--{latency}-{percentile}", text)
        return limits


def _limit_ms(flag: str, text: str) -> float:
    try:
        limit_ms = parse_duration_ms(text)
    except ValueError:
        limit_ms = 0.0
    if limit_ms <= 0:
        raise OptionError(f"{flag} must be a duration such as 40ms or 1s, got {text!r}")
    return limit_ms


__all__ = ["PlanOptions", "rewritten", "run"]


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line with the flags of the simulation behind those of the plan."""
    from blis_sim.bench.runner.commands import split_own_flags

    return split_own_flags(arguments, PlanOptions)


def run(options: PlanOptions) -> int:
    """Search, print the plan, write requested files. Exit codes: 0 found, 1 no deployment meets the targets."""
    from blis_sim.bench.capacity.report import as_json, as_text
    from blis_sim.bench.runner.plan import plan_of

    plan = plan_of(options.simulation, (), None, PlanOptions)
    found = find_plan(options, plan, _print_note)
    sys.stdout.write(as_json(found, _origin(options, plan, found)) if options.format == "json" else as_text(found))
    if found.winner is None:
        _print_note("error: no deployment that was tried meets the targets")
        return 1
    return 0


def _origin(options: PlanOptions, plan: "Plan", found: "CapacityPlan") -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    sureness = None if found.winner is None else found.winner.sureness
    return Provenance(
        command=command_line("blis plan", options),
        model=found.model,
        latency_model="" if sureness is None else sureness.latency_model,
        step_error=None if sureness is None else sureness.step_error,
        step_error_source="" if sureness is None else sureness.error_source,
        seed=plan.settings.get("seed"),
        inputs=input_hashes(options, plan.paths_read()),
    )


def _draw(options: PlanOptions, found: "CapacityPlan", origin: "Provenance") -> None:
    """Draw the picture and write the page that are requested."""
    if options.plot is None and options.html is None:
        return
    from blis_sim.bench.capacity.report import plan_page, plan_panels
    from blis_sim.pictures.page import write_page
    from blis_sim.pictures.style import draw_panels

    if options.plot is not None and found.winner is not None:
        draw_panels(plan_panels(found), options.plot, origin.title)
    if options.html is not None:
        write_page(options.html, plan_page(found, origin))


def find_plan(options: PlanOptions, plan: "Plan", on_note: "NoteCallback") -> "CapacityPlan":
    """Search a deployment for the command and settings of `plan`, and write requested files.

    `on_note` gets the notes, a line each. Raises BlisError.
    """
    from blis_sim.bench.capacity.answer import answer
    from blis_sim.bench.capacity.serving import write_manifests
    from blis_sim.bench.capacity.simulations import simulations
    from blis_sim.bench.runner.workers import process_pool, ray_pool

    _check(options, plan)
    for note in plan.notes:
        on_note(note)
    check_outputs(options, *plan.paths_read())
    pool = ray_pool(options.ray_address) if options.ray else process_pool(options.processes)
    with simulations(plan.simulation.name, pool, options.output) as sims:
        found = answer(sims, _query(options, plan))
    if options.manifests is not None and found.winner is not None:
        write_manifests(options.manifests, found.winner.trial, found.model)
    _draw(options, found, _origin(options, plan, found))
    return found


def _check(options: PlanOptions, plan: "Plan") -> None:
    """Raise OptionError for settings that the plan varies itself, and where a target or a model is missing."""
    searched = {"hardware": "--gpus", "tp": "--tp-sizes", "pp": "--pp-sizes"}
    for name in _SEARCHED:
        if name in plan.settings:
            instead = f": give {searched[name]}" if name in searched else ""
            raise OptionError(f"--{name.replace('_', '-')} is what a plan searches{instead}")
    if not options.limits_ms:
        raise OptionError("a plan needs a target, such as --ttft-p99 1s or --itl-p99 40ms")
    if not plan.settings.get("model"):
        raise OptionError("--model must name the model to plan for")


def _query(options: PlanOptions, plan: "Plan") -> "CapacityQuery":
    from blis_sim.bench.capacity.answer import CapacityQuery
    from blis_sim.bench.capacity.candidates import Choices
    from blis_sim.bench.capacity.prices import read_prices
    from blis_sim.bench.capacity.simulations import Targets
    from blis_sim.engine.latency.catalogue.entries import load_gpu

    has_tokens, has_precision = "max_num_batched_tokens" in plan.settings, "quantization" in plan.settings
    precisions = ("checkpoint",) if has_precision else options.precisions
    hardware_config = plan.settings.get("hardware_config")
    choices = Choices(
        gpus=[load_gpu(each, hardware_config).name for each in options.gpus],
        tps=options.tp_sizes,
        pps=options.pp_sizes,
        quantizations=["" if each == "checkpoint" else each for each in precisions],
        batched_tokens=[None] if has_tokens else [each or None for each in options.step_tokens],
        shapes=options.shapes,
    )
    return CapacityQuery(
        simulation=plan.simulation,
        settings=plan.settings,
        choices=choices,
        prices=read_prices(options.prices),
        targets=Targets(options.limits_ms),
        most_gpus=options.max_gpus,
    )


def _print_note(line: str) -> None:
    sys.stderr.write(f"blis plan: {line}\n")
    sys.stderr.flush()
