"""The answer of a plan as a table, JSON and a page, with command lines and Kubernetes manifests to deploy it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench.candidates import HOURS_PER_MONTH, SERVED, Judgement, Price
from blis_sim.bench.capacity import CapacityPlan, CapacityQuery, StepErrorCase, StressTest, Trial, Winner
from blis_sim.bench.points import Outcome
from blis_sim.engine.cluster.assembly import options_of_role
from blis_sim.engine.cluster.disaggregation import Role
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import has_model, model_entry, short_name
from blis_sim.engine.memory.planner import bytes_per_block
from blis_sim.options import options_of, with_settings
from blis_sim.options.latency_targets import figure_words
from blis_sim.options.option import Setting
from blis_sim.options.provenance import Provenance, blis_version, flag_words
from blis_sim.report.figures import Panel, Target, bar_panel
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, counted, duration, flat
from mockserve.options.vllm_flags import VllmFlag, read_table
from traces.text_file import naming_write_errors, write_text

# Command lines that carry every setting of a deployment which is not the default, for vLLM and for `blis serve`.

_PREDICTION = frozenset(
    {
        *("engine", "vllm_version", "hardware", "hardware_config", "model_config_folder"),
        *("latency_model", "alpha_coeffs", "beta_coeffs", "coefficients", "operators"),
        *("speculative_acceptance_rate", "speculative_draft_time", "speculative_seed"),
    }
)
"""Settings of the prediction, and of the place where vLLM runs, as opposed to those of vLLM."""
_EXPERTS_FLAG, _OFFLOAD_FLAG, _POLICY_FLAG = "--all2all-backend", "--kv-offloading-size", "--scheduling-policy"


@dataclass(frozen=True, slots=True)
class VllmWords:
    """The arguments of `vllm serve`, and the flags of settings that vLLM lacks and that a plan relies on."""

    arguments: tuple[str, ...]
    without_flag: tuple[str, ...] = ()


def blis_arguments(options: ClusterOptions) -> tuple[str, ...]:
    """Return the arguments of `blis serve` for a deployment: the model, and every setting that is not the default."""
    return (options.deployment.model, *(word for _, words in _changed(options) for word in words))


def vllm_arguments(options: DeploymentOptions) -> VllmWords:
    """Return the arguments of `vllm serve` for an instance: every setting that is not the default and that vLLM has."""
    found = [served_name(options.model)]
    missing: list[str] = []
    for setting, words in _changed(options):
        if setting.name in _PREDICTION or setting.path[:1] == ("network",):
            continue
        if (spelled := _in_vllm(options, setting, words)) is not None:
            found += spelled
        else:
            missing += words
    return VllmWords(tuple(found), tuple(missing))


def _changed(options: Any) -> Iterator[tuple[Setting, list[str]]]:
    """Yield each setting with a value other than its default, and the words for it; the model is an argument."""
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.name != "model" and value is not None and value != setting.default:
            yield setting, flag_words(setting, value)


@cache
def _vllm_flags() -> dict[str, VllmFlag]:
    return dict(read_table())


def _in_vllm(options: DeploymentOptions, setting: Setting, words: list[str]) -> list[str] | None:
    """Return the words for a setting in vLLM's spelling, None where vLLM has no such setting."""
    flags = _vllm_flags()
    if setting.name in ("scheduler", "preemption_policy"):
        if options.scheduling_policy:
            return []  # which means these two
        if (options.scheduler, options.preemption_policy) == ("priority-fcfs", "priority"):
            return [_POLICY_FLAG, "priority"] if setting.name == "scheduler" else []
        return None
    if setting.name == "moe_comm_backend":
        backend = options.moe_comm_backend
        return [_EXPERTS_FLAG, backend] if backend in flags[_EXPERTS_FLAG].choices else None
    if setting.name == "kv_cpu_blocks":
        return [_OFFLOAD_FLAG, repr(_gib_of_blocks(options))] if options.engine == "vllm" else None
    spelling = next((each for each in (*setting.flags, words[0]) if each in flags), None)
    if spelling is None:
        return None
    return words if setting.kind is bool else [spelling, *words[1:]]


def _gib_of_blocks(options: DeploymentOptions) -> float:
    """Return the GiB of CPU memory that hold the KV blocks of --kv-cpu-blocks, and no further block."""
    found = resolve(options)
    block_size = found.config.block_size_tokens
    of_gpu = bytes_per_block(found.model, found.tp, options.engine, block_size, found.memory)
    return (options.kv_cpu_blocks + 0.5) * of_gpu * (1 if found.model.is_mla else found.tp) / 2**30


def served_name(model: str) -> str:
    """Return the name under which vLLM finds the model."""
    if not has_model(model):
        return model
    entry, short = model_entry(model), short_name(model)
    if short not in {entry.name, *(each.lower() for each in entry.aliases)}:
        return f"{entry.organisation}/{short}-instruct"  # a family that has no base model of this name
    return f"{entry.organisation}/{model}" if entry.organisation and "/" not in model else model


# The deployment of a plan: the command line of `vllm serve` for each pool, and Kubernetes manifests.

_PORT = 8000
_IMAGE = "vllm/vllm-openai"
_STARTUP_S = 1800
"""Seconds that weights may take to load before Kubernetes restarts a pod."""
_CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal instances of the deployment: their number, the GPUs of each, and how vLLM serves on them."""

    name: str
    count: int
    gpus: int
    image: str
    arguments: tuple[str, ...]
    """The arguments of `vllm serve`."""
    without_flag: tuple[str, ...]
    """Flags of settings of the plan that vLLM does not have."""

    @property
    def command(self) -> str:
        """The command line of one instance, for a shell."""
        return shlex.join(("vllm", "serve", *self.arguments))


@dataclass(frozen=True, slots=True)
class Serving:
    """All command lines of a deployment, from the options with which it was simulated."""

    pools: tuple[Pool, ...]
    simulated: str
    """The command line of `blis serve` that serves as planned, as one server with all instances."""
    router: tuple[str, ...]
    """Flags of the router and the gateway in front of the instances."""

    @property
    def lines(self) -> list[str]:
        """The command lines, and what they cannot say."""
        found = [f"{pool.count} x {pool.command}" for pool in self.pools]
        found.append(f"1 x {self.simulated}")
        found.append(f"image: {self.pools[0].image}")
        if self.router:
            found.append(f"the router in front: {shlex.join(self.router)}")
        if without := dict.fromkeys(word for pool in self.pools for word in pool.without_flag):
            found.append(f"planned, and no flag of vLLM: {shlex.join(without)}")
        return found


def serving_of(query: CapacityQuery, winner: Trial) -> Serving:
    """Return the command lines of a deployment."""
    candidate, counts = winner.candidate, winner.counts
    options = query.simulation.options_with(candidate.settings_with(counts)).cluster
    options = _with_contexts(options, candidate.is_split)
    merged = with_policies(options)
    names: Sequence[tuple[str, Role | None]] = (("server", None),)
    if candidate.is_split:
        names = (("prefill", Role.PREFILL), ("decode", Role.DECODE))
    pools = []
    for (name, role), count, gpus in zip(names, counts, candidate.gpus_per_instance, strict=True):
        words = vllm_arguments(options_of_role(merged, role))
        connector = ("--kv-transfer-config", _CONNECTOR) if candidate.is_split else ()
        image = f"{_IMAGE}:v{merged.deployment.vllm_version}.0"
        pools.append(Pool(name, count, gpus, image, (*words.arguments, *connector), words.without_flag))
    return Serving(tuple(pools), shlex.join(("blis", "serve", *blis_arguments(options))), _router_flags(options))


def _with_contexts(options: ClusterOptions, is_split: bool) -> ClusterOptions:
    """Return the options with the contexts that fit: vLLM does not start with one that its KV cache cannot hold."""
    if not is_split:
        return with_settings(options, max_model_len=_context(options.deployment))
    contexts = {role: _context(options_of_role(options, role)) for role in (Role.PREFILL, Role.DECODE)}
    of_prefill, of_decode = contexts[Role.PREFILL], contexts[Role.DECODE]
    own = {} if of_prefill == of_decode else {"prefill_max_model_len": of_prefill, "decode_max_model_len": of_decode}
    return with_settings(options, max_model_len=of_decode, **own)


def _context(options: DeploymentOptions) -> int:
    """Return --max-model-len, lowered to what the KV cache holds."""
    deployment = resolve(options)
    asked = options.max_model_len or deployment.model.max_model_len
    fitting = (deployment.rank or deployment.config).max_model_len
    return fitting if fitting < asked else options.max_model_len


_OF_POOLS = ("prefill_instances", "decode_instances", "pd_decider", "num_instances")
_OF_INSTANCES = tuple(
    f"{role}_{name}" for role in ("prefill", "decode") for name in ("tp", "pp", "hardware", "max_model_len")
)


def _router_flags(options: ClusterOptions) -> tuple[str, ...]:
    if options.num_instances == 1:
        return ()
    changed = ((setting, setting.of(options)) for setting in options_of(ClusterOptions))
    return tuple(
        word
        for setting, value in changed
        if setting.path[:1] != ("deployment",) and setting.name not in (*_OF_POOLS, *_OF_INSTANCES)
        if value is not None and value != setting.default
        for word in flag_words(setting, value)
    )


def write_manifests(folder: str, query: CapacityQuery, winner: Trial) -> None:
    """Write a Deployment and a Service for each pool, as JSON documents that `kubectl apply -f DIR` takes.

    Raises TraceError when a file cannot be written.
    """
    path = Path(folder)
    with naming_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    serving = serving_of(query, winner)
    for pool in serving.pools:
        for kind, document in _documents(pool, winner.candidate.gpu, serving):
            write_text(path / f"{pool.name}-{kind}.json", json.dumps(document, indent=2) + "\n")


def _documents(pool: Pool, gpu: str, serving: Serving) -> Iterator[tuple[str, dict[str, Any]]]:
    name = f"vllm-{pool.name}"
    labels = {"app": name}
    planned = {
        "blis/planned-gpu": gpu,
        "blis/simulated-by": serving.simulated,
        "blis/router": shlex.join(serving.router),
        "blis/no-flag-of-vllm": shlex.join(pool.without_flag),
    }
    probe = {"httpGet": {"path": "/health", "port": _PORT}}
    container = {
        "name": "vllm",
        "image": pool.image,
        "args": [*pool.arguments, "--port", str(_PORT)],
        "ports": [{"containerPort": _PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(pool.gpus)}},
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": _STARTUP_S // 10},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 3},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    pod = {
        "metadata": {"labels": labels, "annotations": {name: text for name, text in planned.items() if text}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
        },
    }
    yield (
        "deployment",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"replicas": pool.count, "selector": {"matchLabels": labels}, "template": pod},
        },
    )
    ports = [{"name": "http", "port": _PORT, "targetPort": "http"}]
    yield (
        "service",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": labels, "ports": ports},
        },
    )


# The answer of a plan: the table of deployments, remarks on the cheapest, its command lines, and pictures.

_TITLES = (
    *("GPU", "shape", "instances", "GPUs", "$/hour", "$/month", "$/M tokens", "binds", "headroom"),
    *("busy", "resource", "step times"),
)
_MOST_REASONS = 3


def plan_report(found: CapacityPlan, origin: Provenance) -> Report:
    """Return the answer of a plan."""
    commands = [] if found.winner is None else serving_of(found.query, found.winner.trial).lines
    table = Section("The cheapest of each GPU type and shape", plan_table(found))
    serving = [Section("Command lines of the cheapest", text="\n".join(commands))] if commands else []
    return Report(
        title="Plan for",
        origin=lambda: origin,
        data=lambda: document_of(found, origin),
        rows=lambda: map(flat, _answers(found)),
        lead=lambda: query_lines(found),
        sections=lambda: [table, *serving],
        remarks=lambda: [*_refused(found), price_line(found), *winner_lines(found)],
        folds=True,
        panels=lambda: [] if found.winner is None else plan_panels(found),
    )


def query_lines(found: CapacityPlan) -> Iterator[str]:
    """Yield the latency model of all candidates, the load and the targets."""
    if found.step_times:
        yield found.step_times
    load = found.load
    cached = load.whole_prompt_tokens - load.prompt_tokens
    found_before = f", {cached:,.0f} of them found in the prefix cache" if cached >= 1 else ""
    yield (
        f"{found.model}: {load.rate_per_s:.4g} requests/s, {load.whole_prompt_tokens:,.0f} prompt and "
        f"{load.output_tokens:,.0f} output tokens each (means){found_before}"
    )
    yield "targets: " + ", ".join(
        f"{figure_words(name)} at most {duration(limit)}" for name, limit in found.query.targets.limits_ms.items()
    )


def plan_table(found: CapacityPlan) -> TextTable:
    """Return the cheapest deployment of each GPU type and shape."""
    rows: list[Sequence[str]] = []
    ranked = sorted(found.best.items(), key=lambda each: each[1][0].cost_per_hour if each[1] else inf)
    for (gpu, shape), best in ranked:
        if best is None:
            none = "none so far" if found.is_interrupted else "none meets the targets"
            rows.append((gpu, shape, none, *[""] * (len(_TITLES) - 3)))
        else:
            rows.append(_row(gpu, shape, *best))
    return TextTable(_TITLES, rows, num_left_aligned=len(_TITLES), num_labels=2)


def _row(gpu: str, shape: str, trial: Trial, outcome: Outcome) -> tuple[str, ...]:
    candidate, judgement = trial.candidate, trial.judgement
    return (
        gpu,
        shape,
        f"{_counts(trial)} x {candidate.label}",
        str(candidate.num_gpus(trial.counts)),
        f"{trial.cost_per_hour:,.2f}",
        f"{trial.cost_per_hour * HOURS_PER_MONTH:,.0f}",
        f"{_per_million_tokens(trial, outcome):.2f}",
        _binding(judgement),
        f"{judgement.headroom:.0%}",
        "+".join(f"{each:.0%}" for each in judgement.use.busy_fractions) if judgement.use else "",
        judgement.resource,
        candidate.sureness.latency_model,
    )


def _counts(trial: Trial) -> str:
    return "+".join(map(str, trial.counts))


def _per_million_tokens(trial: Trial, outcome: Outcome) -> float:
    figures = outcome.figures
    tokens_per_s = figures.get("steady_output_tokens_per_s") or figures["tokens_per_sec"] or 0.0
    return trial.cost_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s else 0.0


def _binding(judgement: Judgement) -> str:
    return "unserved requests" if judgement.worst == SERVED else figure_words(judgement.worst)


def _refused(found: CapacityPlan) -> Iterator[str]:
    """Yield why instances of a GPU type were left out: the first reasons, each with its first instance."""
    for gpu, reasons in found.refused.items():
        for reason, label in list(reasons.items())[:_MOST_REASONS]:
            yield f"not tried: {gpu} {label}: {reason}"


def prices_of(found: CapacityPlan) -> dict[str, Price]:
    """Return the prices of the GPU types that were requested, where they have one."""
    known = found.query.prices.by_gpu
    return {gpu: known[gpu] for gpu in dict.fromkeys(gpu for gpu, _ in found.best) if gpu in known}


def price_line(found: CapacityPlan) -> str:
    """Return a line with the prices behind the costs, and the flag that replaces them."""
    shown = "; ".join(f"{gpu} ${price.per_hour:.2f} ({price.origin})" for gpu, price in prices_of(found).items())
    return f"$ per GPU-hour, to be checked (--prices FILE states others): {shown}"


def winner_lines(found: CapacityPlan) -> Iterator[str]:
    """Yield the cheapest deployment, its stress tests and the expected error."""
    winner = found.winner
    if winner is None:
        confidence = found.query.targets.confidence
        how = "" if confidence is None else f" with a probability of {confidence:.0%}"
        yield f"no deployment of at most {found.query.most_gpus} GPUs that was tried meets the targets{how}"
        return
    trial, candidate = winner.trial, winner.trial.candidate
    prices = found.query.prices
    price = prices.of(candidate.gpu)
    yield (
        f"cheapest: {_counts(trial)} x {candidate.label} on {candidate.gpu}, "
        f"${trial.cost_per_hour:,.2f} an hour at ${price.per_hour:.2f} per GPU ({price.origin})"
    )
    yield (
        "simulated: "
        + ", ".join(
            f"{figure_words(name)} {duration(winner.outcome.figures[name] or 0.0)}{_range(winner.outcome, name)}"
            for name in found.query.targets.limits_ms
        )
        + "; in brackets the range of chance, where that of an endless run lies in nine of ten cases"
    )
    yield from _near_limits(winner.outcome, found.query.targets.limits_ms)
    if winner.highest_rate_per_s is not None:
        yield f"meets the targets up to {winner.highest_rate_per_s:.3g} requests/s"
    yield from (f"with {stress.name}: {_verdict(stress)}" for stress in winner.stress_tests)
    yield f"how sure: step times by {candidate.sureness.latency_model}: {candidate.sureness.text}"
    probability = found.query.targets.probability(winner.outcome, candidate.sureness)
    if probability is not None:
        yield f"each target is met with a probability of at least {probability:.0%}, by the errors on servers like it"
    yield from (
        f"if steps take {abs(bound.step_error):.1%} {_longer(bound)}: {_step_error_text(bound)}"
        for bound in winner.step_error_cases
    )


def _range(outcome: Outcome, name: str) -> str:
    """Return the sampling error of a figure in brackets, empty where it is unknown."""
    found = outcome.ranges.get(name)
    if found is None:
        return ""
    return f" ({duration(found.low_ms)} {'or more' if found.high_ms is None else f'to {duration(found.high_ms)}'})"


def _near_limits(outcome: Outcome, limits: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each target that is met by less than the sampling error of its figure."""
    requests = outcome.figures.get("completed_requests") or 0
    for name, limit_ms in limits.items():
        found, figure_ms = outcome.ranges.get(name), outcome.figures.get(name) or 0.0
        if found is None or not 0 < figure_ms <= limit_ms or (found.high_ms is not None and found.high_ms <= limit_ms):
            continue
        yield (
            f"{figure_words(name)} meets its target by {1 - figure_ms / limit_ms:.1%}, less than chance makes of "
            f"{requests:,.0f} requests: a longer run may miss it"
        )


def _verdict(stress: StressTest) -> str:
    if stress.judgement is None:
        return f"not tried, {stress.reason}"
    if stress.judgement.is_met:
        return f"targets met, {_binding(stress.judgement)} has {stress.judgement.headroom:.0%} left"
    if stress.judgement.worst == SERVED:
        return "missed, requests are left unserved"
    return f"missed, {_binding(stress.judgement)} is {stress.judgement.load:.3g} times its limit"


def _longer(bound: StepErrorCase) -> str:
    return "longer" if bound.step_error > 0 else "less"


def _step_error_text(bound: StepErrorCase) -> str:
    if bound.trial is None:
        return "no number of these instances meets the targets"
    noun = "instance" if bound.trial.counts == (1,) else "instances"
    return f"{_counts(bound.trial)} {noun}, ${bound.trial.cost_per_hour:,.2f} an hour"


def document_of(found: CapacityPlan, origin: Provenance | None = None) -> dict[str, Any]:
    """Return the answer as JSON has it."""
    load = found.load
    return {
        "version": blis_version(),
        **({} if origin is None else {"provenance": asdict(origin)}),
        "model": found.model,
        "load": {
            "rate_per_s": load.rate_per_s,
            "prompt_tokens": load.whole_prompt_tokens,
            "new_prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
        },
        "targets_ms": dict(found.query.targets.limits_ms),
        "prices": {gpu: asdict(price) for gpu, price in prices_of(found).items()},
        "step_times": found.step_times or None,
        "answers": _answers(found),
        "refused": {gpu: dict(reasons) for gpu, reasons in found.refused.items()},
        "cheapest": _winner_json(found.winner, found.query) if found.winner else None,
        "simulations": found.num_simulations,
        "interrupted": found.is_interrupted,
    }


def _answers(found: CapacityPlan) -> list[dict[str, Any]]:
    return [
        {"gpu": gpu, "shape": shape, **(_trial_json(*best) if best else {"met": False})}
        for (gpu, shape), best in found.best.items()
    ]


def _winner_json(winner: Winner, query: CapacityQuery) -> dict[str, Any]:
    candidate = winner.trial.candidate
    serving = serving_of(query, winner.trial)
    return {
        "gpu": candidate.gpu,
        "shape": candidate.shape,
        **_trial_json(winner.trial, winner.outcome),
        "latency_model": candidate.sureness.latency_model,
        "step_error": candidate.sureness.step_error,
        "sureness": candidate.sureness.as_json,
        "probability": query.targets.probability(winner.outcome, candidate.sureness),
        "confidence": query.targets.confidence,
        "highest_rate_per_s": winner.highest_rate_per_s,
        "stresses": [
            {
                "name": each.name,
                "met": each.judgement.is_met if each.judgement else None,
                "reason": "" if each.judgement else each.reason,
            }
            for each in winner.stress_tests
        ],
        "bounds": [
            {
                "step_error": each.step_error,
                "counts": list(each.trial.counts) if each.trial else None,
                "dollars_per_hour": each.trial.cost_per_hour if each.trial else None,
            }
            for each in winner.step_error_cases
        ],
        "commands": [
            {
                "pool": pool.name,
                "count": pool.count,
                "gpus": pool.gpus,
                "image": pool.image,
                "command": pool.command,
                "without_flag": list(pool.without_flag),
            }
            for pool in serving.pools
        ],
        "router": list(serving.router),
        "simulated": {"count": 1, "command": serving.simulated},
    }


def _trial_json(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    candidate, judgement = trial.candidate, trial.judgement
    return {
        "met": True,
        "label": candidate.label,
        "counts": list(trial.counts),
        "gpus": candidate.num_gpus(trial.counts),
        "settings": candidate.settings_with(trial.counts),
        "dollars_per_hour": trial.cost_per_hour,
        "dollars_per_month": trial.cost_per_hour * HOURS_PER_MONTH,
        "dollars_per_million_tokens": _per_million_tokens(trial, outcome),
        "binds": judgement.worst,
        "headroom": judgement.headroom,
        "resource": judgement.resource,
        "use": None if judgement.use is None else asdict(judgement.use),
        "figures": dict(outcome.figures),
        "ranges": {name: asdict(each) for name, each in outcome.ranges.items()},
    }


def plan_panels(found: CapacityPlan) -> list[Panel]:
    """Return the costs of all answers, and the load that the winner keeps up against the one asked for."""
    best = {f"{gpu} {shape}": each for (gpu, shape), each in found.best.items() if each is not None}
    ranked = dict(sorted(best.items(), key=lambda each: each[1][0].cost_per_hour))
    costs = {name: trial.cost_per_hour for name, (trial, _) in ranked.items()}
    words = {
        name: f"${trial.cost_per_hour:,.2f}, {counted(trial.candidate.num_gpus(trial.counts), 'GPU')}"
        for name, (trial, _) in ranked.items()
    }
    panels = [bar_panel("Cost of the cheapest deployments", "$ per hour", costs, words)]
    winner = found.winner
    if winner is not None:
        limits = found.query.targets.limits_ms
        shares = {
            figure_words(name): 100 * (winner.outcome.figures[name] or 0.0) / limit for name, limit in limits.items()
        }
        texts = {name: f"{share:.0f} %" for name, share in shares.items()}
        panels.append(
            bar_panel(
                "Latencies of the cheapest against their targets",
                "% of the target",
                shares,
                texts,
                Target(100, "target"),
            )
        )
    return panels
