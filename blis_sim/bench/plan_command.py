"""`blis plan`: the cheapest deployment that meets latency targets under a load."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from blis_sim.bench.simulation_commands import (
    check_cluster,
    processes_option,
    ray_address_option,
    ray_option,
    simulation_option,
)
from blis_sim.engine.speculation_options import SpeculationOptions
from blis_sim.installation import check_answer
from blis_sim.options import ExclusionError, OptionError, check_outputs, option, written_file
from blis_sim.options.latency_targets import LatencyTargets
from blis_sim.options.printing import format_option, json_option, print_note, printed_format
from blis_sim.options.progress import no_progress

if TYPE_CHECKING:
    from blis_sim.bench.capacity import CapacityPlan, CapacityQuery
    from blis_sim.bench.points import Plan
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance

_print_note = partial(print_note, "blis plan")

SHAPES = ("aggregated", "pd")
EXIT_INTERRUPTED = 130
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(LatencyTargets):
    """The settings of `blis plan`. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "Flags of blis run, or replay and its flags: the model, the load, engine settings; they may stand anywhere. "
        "What they set is not searched."
    )
    confidence: float | None = option(
        None,
        "Least probability that a real server meets each target, such as 0.9, by the errors on servers like it. By "
        "default predicted times are taken as they are.",
        at_least=0.5,
        at_most=0.98,
        metavar="SHARE",
        heading="Search",
    )
    gpus: tuple[str, ...] = option(("H100", "H200", "B200"), "GPU types to try.")
    tp_sizes: tuple[int, ...] = option((1, 2, 4, 8), "Tensor parallelism to try.")
    pp_sizes: tuple[int, ...] = option((1,), "Pipeline stages to try.")
    dp_sizes: tuple[int, ...] = option(
        (1,),
        "Data-parallel ranks of an instance to try: above 1 for models with experts, whole ones of which each GPU then "
        "has, and without separate pools.",
    )
    shapes: tuple[str, ...] = option(
        SHAPES, "Shapes to try: aggregated instances, or pools of prefill and decode instances (pd).", choices=SHAPES
    )
    precisions: tuple[str, ...] = option(
        ("checkpoint", "fp8"),
        "Weights to try: those of the checkpoint, or quantised to fp8 as vLLM does while it loads them.",
        choices=("checkpoint", "fp8"),
    )
    kv_cache_dtypes: tuple[str, ...] = option(("auto",), "Types of KV-cache entries to try, such as auto,fp8.")
    speculative_configs: tuple[str, ...] = option(
        (),
        "Speculative decoding to try beside none, as --speculative-config takes it; may be repeated.",
        metavar="CONFIG",
        repeatable=True,
    )
    step_tokens: tuple[int, ...] = option(
        (0, 2048, 512), "Values of --max-num-batched-tokens to try; 0 is vLLM's default.", metavar="LIST"
    )
    exhaustive: bool = option(
        False,
        "Simulate every deployment that the times of single steps allow, in the order of costs, instead of those that "
        "can still win: minutes to hours.",
    )
    max_gpus: int = option(1024, "Most GPUs of a deployment.", at_least=1, at_most=10_000)
    prices: str | None = option(
        None, "YAML file with dollars per GPU-hour, such as gpus: {H100: 2.49} (default: a table that ships).",
        metavar="FILE",
    )  # fmt: skip
    processes: int | None = processes_option()
    ray: bool = ray_option()
    ray_address: str | None = ray_address_option()
    output: str | None = written_file(
        "simulations",
        "Keep the simulations in this file (JSON lines); a later plan reuses them.",
        flags=("--output", "-o"),
        heading="Output",
    )
    plot: str | None = written_file(
        "picture",
        "Draw the costs, and the latencies of the cheapest deployment (.png, .svg or .pdf; needs matplotlib).",
    )
    html: str | None = written_file(
        "plan page", "Write the plan as one page with table, pictures and origin (HTML; needs matplotlib)."
    )
    manifests: str | None = option(
        None, "Write Kubernetes manifests of the cheapest deployment into this folder.", metavar="DIR"
    )
    format: str = format_option()
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_answer(self)
        check_cluster(self.ray, self.ray_address, self.processes)
        _ = self.targets_ms  # making it checks it
        lists = ("gpus", "tp_sizes", "pp_sizes", "dp_sizes", "shapes", "precisions", "kv_cache_dtypes", "step_tokens")
        for name in lists:
            values = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            if not values or len(set(values)) < len(values):
                raise OptionError(f"{flag} must name at least one value, and each once, got {values!r}")
        for name, least in (("tp_sizes", 1), ("pp_sizes", 1), ("dp_sizes", 1), ("step_tokens", 0)):
            wrong = [each for each in getattr(self, name) if each < least]
            if wrong:
                raise OptionError(f"--{name.replace('_', '-')} must be at least {least}, got {wrong[0]}")
        for text in self.speculative_configs:
            SpeculationOptions(speculative_config=text).speculation  # noqa: B018  (making it checks it)


__all__ = ["PlanOptions", "run"]


def run(options: PlanOptions) -> int:
    """Search, print the plan, write requested files.

    Exit codes: 0 found, 1 no deployment meets the targets, 130 interrupted, with the best so far.
    """
    from blis_sim.bench.plan_report import plan_report
    from blis_sim.bench.points import plan_of
    from blis_sim.options.progress import progress_bar

    plan = plan_of(options.simulation, (), None, PlanOptions, (*_SEARCHED, *_lists_asked(options)))
    found = find_plan(options, plan, _print_note, progress_bar)
    plan_report(found, _origin(options, plan, found)).print(printed_format(options))
    if found.is_interrupted:
        _print_note("interrupted: this is the best so far, and other counts and settings were not tried")
        return EXIT_INTERRUPTED
    if found.winner is None:
        _print_note("error: no deployment that was tried meets the targets")
        return 1
    return 0


def _origin(options: PlanOptions, plan: "Plan", found: "CapacityPlan") -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    sureness = None if found.winner is None else found.winner.trial.candidate.sureness
    return Provenance(
        command=command_line("blis plan", options),
        model=found.model,
        latency_model="" if sureness is None else sureness.latency_model,
        step_error=None if sureness is None else sureness.step_error,
        sureness={} if sureness is None else sureness.as_json,
        seed=plan.settings.get("seed"),
        inputs=input_hashes(options, plan.paths_read()),
    )


def find_plan(
    options: PlanOptions, plan: "Plan", on_note: "NoteCallback", progress: "Progress" = no_progress
) -> "CapacityPlan":
    """Search a deployment for the command and settings of `plan`, and write requested files.

    `on_note` gets the notes, a line each. Raises BlisError, and KeyboardInterrupt when Ctrl-C comes before a deployment
    is found.
    """
    from blis_sim.bench.candidates import simulations
    from blis_sim.bench.capacity import answer
    from blis_sim.bench.plan_report import write_manifests
    from blis_sim.bench.workers import POOLS, process_pool

    # Raise OptionError for settings that the plan varies itself, and where a target or a model is missing.
    searched = {"hardware": "--gpus", "tp": "--tp-sizes", "pp": "--pp-sizes"}
    for name in (name for name in _lists_asked(options) if name in plan.settings):
        flag = f"--{name.replace('_', '-')}"
        raise ExclusionError(flag if name != "dp" else "--dp", _LISTS[name], "")
    for name in _SEARCHED:
        if name in plan.settings:
            instead = f": give {searched[name]}" if name in searched else ""
            raise OptionError(f"--{name.replace('_', '-')} is what a plan searches{instead}")
    if not options.targets_ms:
        raise OptionError("a plan needs a target, such as --ttft-p99 1s or --itl-p99 40ms")
    if not plan.settings.get("model"):
        raise OptionError("--model must name the model to plan for")
    for note in plan.notes:
        on_note(note)
    check_outputs(options, *plan.paths_read())
    pool = POOLS["ray"](options.ray_address) if options.ray else process_pool(options.processes)
    with simulations(plan.simulation.name, pool, options.output) as sims:
        found = answer(sims, _query(options, plan), progress)
    for note in found.notes:
        on_note(note)
    if options.manifests is not None and found.winner is not None:
        write_manifests(options.manifests, found.query, found.winner.trial)
    if options.plot is not None or options.html is not None:
        from blis_sim.bench.plan_report import plan_report

        plan_report(found, _origin(options, plan, found)).write(options.html, options.plot)
    return found


def _lists_asked(options: PlanOptions) -> list[str]:
    """Return the names of settings that are searched where a flag lists their values."""
    asked = {"dp": options.dp_sizes != (1,), "kv_cache_dtype": options.kv_cache_dtypes != ("auto",)}
    asked["speculative_config"] = bool(options.speculative_configs)
    return [name for name, is_searched in asked.items() if is_searched]


_LISTS = {
    "dp": "--dp-sizes",
    "kv_cache_dtype": "--kv-cache-dtypes",
    "speculative_config": "--speculative-configs",
}
"""The flags that search a setting, which may be given instead."""


def _query(options: PlanOptions, plan: "Plan") -> "CapacityQuery":
    from blis_sim.bench.candidates import Choices, Targets, read_prices
    from blis_sim.bench.capacity import CapacityQuery
    from blis_sim.engine.latency.catalogue import load_gpu

    has_tokens, has_precision = "max_num_batched_tokens" in plan.settings, "quantization" in plan.settings
    precisions = ("checkpoint",) if has_precision else options.precisions
    hardware_config = plan.settings.get("hardware_config")
    choices = Choices(
        gpus=[load_gpu(each, hardware_config).name for each in options.gpus],
        tps=options.tp_sizes,
        pps=options.pp_sizes,
        dps=options.dp_sizes,
        quantizations=["" if each == "checkpoint" else each for each in precisions],
        kv_cache_dtypes=["" if each == "auto" else each for each in options.kv_cache_dtypes],
        speculative_configs=["", *options.speculative_configs],
        batched_tokens=[None] if has_tokens else [each or None for each in options.step_tokens],
        shapes=options.shapes,
    )
    return CapacityQuery(
        simulation=plan.simulation,
        settings=plan.settings,
        choices=choices,
        prices=read_prices(options.prices),
        targets=Targets(options.targets_ms, options.confidence),
        most_gpus=options.max_gpus,
        is_exhaustive=options.exhaustive,
    )
