"""The answer of a plan as a table for people, as one JSON object, and as a page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from math import inf
from typing import Any

from blis_sim.bench.capacity.answer import CapacityPlan, StepErrorCase, StressTest, Winner
from blis_sim.bench.capacity.prices import HOURS_PER_MONTH, Price
from blis_sim.bench.capacity.search import Trial
from blis_sim.bench.capacity.serving import pools_of
from blis_sim.bench.capacity.simulations import SERVED, Judgement
from blis_sim.bench.runner.simulate import Outcome
from blis_sim.options.provenance import Provenance, blis_version
from blis_sim.options.text_table import TextTable, counted
from blis_sim.pictures.page import figures_html, page, table_html
from blis_sim.pictures.panels import Target, bar_panel
from blis_sim.pictures.style import Panel

_TITLES = ("GPU", "shape", "instances", "GPUs", "$/hour", "$/month", "$/M tokens", "binds", "headroom", "step times")
_MOST_REASONS = 3


def as_text(found: CapacityPlan) -> str:
    """Return the answer as lines of text, with a newline at the end."""
    return (
        "\n".join(
            [
                *query_lines(found),
                "",
                *plan_table(found).lines,
                *_refused(found),
                price_line(found),
                "",
                *winner_lines(found),
            ]
        )
        + "\n"
    )


def query_lines(found: CapacityPlan) -> Iterator[str]:
    """Yield the load and the targets."""
    load = found.load
    yield (
        f"{found.model}: {load.rate_per_s:g} requests/s, {load.prompt_tokens:,.0f} prompt and "
        f"{load.output_tokens:,.0f} output tokens each (means)"
    )
    yield "targets: " + ", ".join(f"{_latency(name)} at most {_ms(limit)}" for name, limit in _limits(found))


def _limits(found: CapacityPlan) -> list[tuple[str, float]]:
    return list(found.query.targets.limits_ms.items())


def _latency(figure: str) -> str:
    """Return a figure such as `ttft_p99_ms` as `TTFT p99`."""
    name, percentile, _ = figure.split("_")
    return f"{name.upper()} {percentile}"


def _ms(value_ms: float) -> str:
    return f"{value_ms / 1000:.3g} s" if value_ms >= 1000 else f"{value_ms:.3g} ms"


def plan_table(found: CapacityPlan) -> TextTable:
    """Return the cheapest deployment of each GPU type and shape."""
    rows: list[Sequence[str]] = []
    ranked = sorted(found.best.items(), key=lambda each: each[1][0].cost_per_hour if each[1] else inf)
    for (gpu, shape), best in ranked:
        if best is None:
            rows.append((gpu, shape, "none meets the targets", *[""] * (len(_TITLES) - 3)))
        else:
            rows.append(_row(gpu, shape, *best))
    return TextTable(_TITLES, rows, num_left_aligned=len(_TITLES))


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
        candidate.latency_model,
    )


def _counts(trial: Trial) -> str:
    return "+".join(map(str, trial.counts))


def _per_million_tokens(trial: Trial, outcome: Outcome) -> float:
    tokens_per_s = outcome.figures["tokens_per_sec"] or 0.0
    return trial.cost_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s else 0.0


def _binding(judgement: Judgement) -> str:
    return "unserved requests" if judgement.worst == SERVED else _latency(judgement.worst)


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
    """Yield the cheapest deployment, its stress tests, the expected error, and its command lines."""
    winner = found.winner
    if winner is None:
        yield f"no deployment of at most {found.query.most_gpus} GPUs that was tried meets the targets"
        return
    trial, candidate = winner.trial, winner.trial.candidate
    prices = found.query.prices
    price = prices.of(candidate.gpu)
    yield (
        f"cheapest: {_counts(trial)} x {candidate.label} on {candidate.gpu}, "
        f"${trial.cost_per_hour:,.2f} an hour at ${price.per_hour:.2f} per GPU ({price.origin})"
    )
    yield "  simulated: " + ", ".join(
        f"{_latency(name)} {_ms(winner.outcome.figures[name] or 0.0)}" for name, _ in _limits(found)
    )
    if winner.highest_rate_per_s is not None:
        yield f"  meets the targets up to {winner.highest_rate_per_s:.3g} requests/s"
    yield from (f"  with {stress.name}: {_verdict(stress)}" for stress in winner.stress_tests)
    yield f"  how sure: step times by {winner.sureness.latency_model}; {winner.sureness.error_source}"
    yield from (
        f"  if steps take {abs(bound.step_error):.0%} {_longer(bound)}: {_step_error_text(bound)}"
        for bound in winner.step_error_cases
    )
    yield from (f"  {pool.count} x {pool.command}" for pool in pools_of(trial, found.model))


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


def as_json(found: CapacityPlan, origin: Provenance | None = None) -> str:
    """Return the answer as one JSON object, with a newline at the end."""
    load = found.load
    document = {
        "version": blis_version(),
        **({} if origin is None else {"provenance": asdict(origin)}),
        "model": found.model,
        "load": {
            "rate_per_s": load.rate_per_s,
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
        },
        "targets_ms": dict(found.query.targets.limits_ms),
        "prices": {gpu: asdict(price) for gpu, price in prices_of(found).items()},
        "answers": [
            {"gpu": gpu, "shape": shape, **(_trial_json(*best) if best else {"met": False})}
            for (gpu, shape), best in found.best.items()
        ],
        "refused": {gpu: dict(reasons) for gpu, reasons in found.refused.items()},
        "cheapest": _winner_json(found.winner, found.model) if found.winner else None,
        "simulations": found.num_simulations,
    }
    return json.dumps(document, indent=2) + "\n"


def _winner_json(winner: Winner, model: str) -> dict[str, Any]:
    candidate = winner.trial.candidate
    return {
        "gpu": candidate.gpu,
        "shape": candidate.shape,
        **_trial_json(winner.trial, winner.outcome),
        "latency_model": winner.sureness.latency_model,
        "step_error": winner.sureness.step_error,
        "step_error_source": winner.sureness.error_source,
        "highest_rate_per_s": winner.highest_rate_per_s,
        "stresses": [
            {"name": each.name, "met": each.judgement.is_met if each.judgement else None, "reason": each.reason}
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
            {"pool": pool.name, "count": pool.count, "gpus": pool.gpus, "command": pool.command}
            for pool in pools_of(winner.trial, model)
        ],
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
        "figures": dict(outcome.figures),
    }


def plan_page(found: CapacityPlan, origin: Provenance) -> str:
    """Return the page of a plan."""
    winner = found.winner
    lines = list(winner_lines(found))
    commands = (
        [] if winner is None else [f"{pool.count} x {pool.command}" for pool in pools_of(winner.trial, found.model)]
    )
    remarks = [line.strip() for line in lines if line.strip() not in commands]
    parts = ["<h2>The cheapest of each GPU type and shape</h2>", table_html(plan_table(found))]
    parts += [f'<p class="origin">{escape(price_line(found))}</p>']
    if found.winner is not None:
        parts += ["<h2>Pictures</h2>", figures_html(plan_panels(found))]
        parts += [f"<h2>Command lines</h2><pre>{escape(chr(10).join(commands))}</pre>"]
    return page(f"Plan for {found.model}", origin, remarks, parts, query_lines(found))


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
            f"{name.split('_')[0].upper()} {name.split('_')[1]}": 100 * (winner.outcome.figures[name] or 0.0) / limit
            for name, limit in limits.items()
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
