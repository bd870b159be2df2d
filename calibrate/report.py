"""The answer of a calibration: tables, and a JSON object whose keys and their order are those of the original."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_sim.options import check_written
from blis_sim.options.printing import BLIS
from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import COLORS, Panel, panel_png
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, flat
from calibrate.calibration import (
    NAMES,
    AdapterComparison,
    Calibration,
    ClassGoodput,
    Goodput,
    Values,
    in_flight,
    summary_sentences,
)
from calibrate.compare import Comparison, ConfidenceIntervals, Floats, confidence_intervals
from traces import dump_json
from traces.steps import StepTotals
from traces.text_file import naming_write_errors, write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The pictures of a calibration.

RECORDED, OTHER = COLORS[:2]
_INCHES = (4.6, 3.4)
_NUM_BINS = 12
_NUM_TICKS = 6
"""More of them run into each other where latencies have many digits."""


def panels_of(found: Calibration) -> dict[str, Panel]:
    """Return the pictures by their names as files, without a suffix."""
    other = "second recording" if found.is_recording else "simulation"
    return {
        f"{metric}-{kind}": _panel(
            f"{NAMES[metric]}: {caption.format(other=other)}", draw, NAMES[metric], values, other
        )
        for metric, values in found.values.items()
        for kind, (caption, draw) in _KINDS.items()
    }


def _panel(title: str, draw: "Draw", name: str, values: Values, other: str) -> Panel:
    def drawn(axes: "Axes") -> None:
        draw(axes, name, values, other)

    return Panel(title=title, x_label="", y_label="", draw=drawn, inches=_INCHES, has_many_points=True)


def _scatter(axes: "Axes", name: str, values: Values, other: str) -> None:
    real, sim = values.real_us / 1000, values.sim_us / 1000
    limit = float(max(real.max(), sim.max())) * 1.05 or 1.0
    axes.plot([0, limit], [0, limit], color="#999999", linewidth=0.8)
    axes.scatter(real, sim, s=5, alpha=0.35, color=RECORDED, linewidths=0)
    axes.set(
        xlabel=f"{name} of the recording, ms", ylabel=f"{name} of the {other}, ms", xlim=(0, limit), ylim=(0, limit)
    )
    axes.locator_params(nbins=_NUM_TICKS)


def _cdf(axes: "Axes", name: str, values: Values, other: str) -> None:
    for each, label, color in ((values.real_us, "recording", RECORDED), (values.sim_us, other, OTHER)):
        axes.plot(np.sort(each) / 1000, np.arange(1, len(each) + 1) / len(each), label=label, color=color)
    axes.set(xlabel=f"{name}, ms", ylabel="share of requests", ylim=(0, 1.02))
    axes.locator_params(axis="x", nbins=_NUM_TICKS)


def _over_time(axes: "Axes", name: str, values: Values, _other: str) -> None:
    sent_s = np.array([row.send_time_us for row in values.rows], np.float64) / 1e6
    _error_panel(axes, name, values, sent_s - sent_s.min(), "sent after, s")


def _by_load(axes: "Axes", name: str, values: Values, _other: str) -> None:
    _error_panel(axes, name, values, in_flight(values), "requests in flight when sent")


def _by_input(axes: "Axes", name: str, values: Values, _other: str) -> None:
    inputs = [row.server_input_tokens or row.input_tokens for row in values.rows]
    _error_panel(axes, name, values, np.array(inputs, np.float64), "prompt, tokens")


def _by_output(axes: "Axes", name: str, values: Values, _other: str) -> None:
    _error_panel(axes, name, values, np.array([row.output_tokens for row in values.rows], np.float64), "output, tokens")


def _error_panel(axes: "Axes", name: str, values: Values, cause: Floats, label: str) -> None:
    """Error of each request over a cause, with the median of each of some ranges that hold equally many."""
    errors = 100 * (values.sim_us - values.real_us) / np.where(values.real_us > 0, values.real_us, np.nan)
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.scatter(cause, errors, s=4, alpha=0.25, color=RECORDED, linewidths=0)
    edges = np.unique(np.quantile(cause, np.linspace(0, 1, _NUM_BINS + 1)))
    place = np.clip(np.searchsorted(edges, cause, side="right") - 1, 0, max(0, len(edges) - 2))
    medians = [
        (float(cause[place == number].mean()), float(np.nanmedian(errors[place == number])))
        for number in np.unique(place)
        if np.isfinite(errors[place == number]).any()
    ]
    axes.plot(*np.array(medians).reshape(-1, 2).T, color=OTHER, marker="o", markersize=3, linewidth=1.4)
    axes.set(xlabel=label, ylabel=f"error of {name}, %")


Draw = Callable[["Axes", str, Values, str], None]
_KINDS: Mapping[str, tuple[str, Draw]] = {
    "scatter": ("{other} against recording, each request", _scatter),
    "cdf": ("distributions", _cdf),
    "load": ("error against load", _by_load),
    "time": ("error over time", _over_time),
    "input": ("error by prompt length", _by_input),
    "output": ("error by output length", _by_output),
}


# The answer of a calibration: tables, and a JSON object whose keys and their order are those of the original.

JsonObject = dict[str, Any]

KNOWN_LIMITATIONS = (
    "The simulator advances step by step; what a server does between two steps is contained in fixed overheads.",
    "A trace has the length of a shared prefix, not its tokens, so cache hits beyond it are not predicted.",
    "Every decoding step yields one token per request: speculative decoding is not modelled.",
    "Prompt lengths are compared with the server's own count; template tokens can make the two differ by a few.",
)


def report_of(found: Calibration) -> JsonObject:
    """The report with the keys of the original; what does not apply is left out."""
    pairing = found.pairing
    info: JsonObject = {
        "num_requests": pairing.num_requests,
        "warm_up_excluded": pairing.num_warm_up,
        "matched_pairs": pairing.num_matched,
        "token_mismatches": pairing.num_token_mismatches,
    }
    if found.num_itl_dropped:
        info["itl_dropped"] = found.num_itl_dropped
    content: JsonObject = {
        "trace_info": info,
        "metrics": {name: _metric(comparison) for name, comparison in sorted(found.metrics.items())},
        "config_match": {},
        "known_limitations": list(KNOWN_LIMITATIONS),
    }
    if found.goodput is not None:
        content["goodput"] = _goodput(found.goodput)
    if found.hit_rate is not None:
        content["hit_rate"] = {
            "real_hit_rate": found.hit_rate.real,
            "sim_hit_rate": found.hit_rate.sim,
            "abs_error_pp": found.hit_rate.error_pp,
            "tolerance_pp": found.hit_rate.tolerance_pp,
            "within": found.hit_rate.within,
            "source": found.hit_rate.source,
        }
    ttft_mape = found.metrics["ttft"].mape
    content["ttft_tolerance"] = {
        "mape": ttft_mape,
        "threshold": found.ttft_threshold,
        "within": ttft_mape <= found.ttft_threshold,
    }
    return content


def additions(found: Calibration) -> JsonObject:
    """Further findings: the fate of every row, throughput, classes and models, the assumed network."""
    pairing = found.pairing
    content: JsonObject = {
        "rows": {
            "matched": pairing.num_matched,
            "warm_up": pairing.num_warm_up,
            "failed": pairing.num_failed,
            "repeated": pairing.num_repeated,
            "without_times": pairing.num_without_times,
            "unmatched": pairing.num_unmatched_rows,
            "unmatched_results": pairing.num_unmatched_results,
        },
        "throughput": {
            name: _throughput(getattr(found.real_throughput, name), getattr(found.sim_throughput, name))
            for name in ("requests_per_s", "output_tokens_per_s", "duration_s")
        },
        "network": {"rtt_us": found.network.rtt_us, "bandwidth_mbps": found.network.bandwidth_mbps},
    }
    kinds = (("by_slo_class", found.by_slo_class), ("by_model", found.by_model), ("by_tenant", found.by_tenant))
    for key, groups in kinds:
        if groups:
            content[key] = {
                name: {"count": group.count, "ttft_mape": group.ttft_mape, "e2e_mape": group.e2e_mape}
                for name, group in groups.items()
            }
    return content


def adapter_content(found: AdapterComparison) -> JsonObject:
    """The report of a comparison with an adapter reference."""
    return {
        "model": found.model,
        "mape_threshold": found.threshold,
        "metrics": [
            {
                "metric": metric.name,
                "dt_value": metric.reference,
                "blis_value": metric.simulated,
                "mape": metric.error,
                "within_threshold": metric.within,
                **({} if metric.delta_mape is None else {"delta_mape": metric.delta_mape}),
            }
            for metric in found.metrics
        ],
        "all_within_threshold": all(metric.within for metric in found.metrics),
    }


def adapter_report(found: AdapterComparison, origin: Callable[[], Provenance]) -> Report:
    """Return the answer of a comparison with an adapter reference: each metric against its reference."""
    rows = [
        [
            metric.name,
            f"{metric.reference:.2f}",
            f"{metric.simulated:.2f}",
            percent(metric.error),
            "-" if metric.delta_mape is None else percent(metric.delta_mape),
            "within" if metric.within else "exceeds",
        ]
        for metric in found.metrics
    ]
    titles = ("metric", "reference", "simulated", "error", "error of change", f"limit {percent(found.threshold)}")
    return Report(
        title="Metrics with adapters against a reference",
        origin=origin,
        data=lambda: adapter_content(found),
        rows=lambda: adapter_content(found)["metrics"],
        sections=lambda: [Section(table=TextTable(titles, rows))],
    )


def _metric(comparison: Comparison) -> JsonObject:
    workload: JsonObject = {}
    for name in ("mean", "median", "p50", "p90", "p95", "p99"):
        side = "p50" if name == "median" else name
        workload |= _errors(name, getattr(comparison.real, side), getattr(comparison.sim, side))
    request = {
        "mape": comparison.mape,
        "pearson_r": comparison.pearson_r,
        "bias_direction": comparison.bias,
        "quality": comparison.quality,
    }
    return {"workload_level": workload, "request_level": request, "count": comparison.count}


def _errors(name: str, real: float, sim: float) -> JsonObject:
    error = sim - real
    percent = abs(error) / real if real > 0 else 0.0
    return {f"real_{name}": real, f"sim_{name}": sim, f"{name}_error": error, f"{name}_percent_error": percent}


def _goodput(found: Goodput) -> JsonObject:
    targets = {
        name: {"TTFTMs": limits.ttft_ms, "ITLMs": limits.itl_ms, "E2EMs": limits.e2e_ms}
        for name, limits in found.targets.items()
    }
    classes = {name: _class_goodput(of_class) for name, of_class in found.classes.items()}
    skipped = {"skipped_itl": True} if found.itl_skipped else {}
    return {"targets": targets, "per_class": classes, **skipped}


def _class_goodput(found: ClassGoodput) -> JsonObject:
    return {
        "count": found.count,
        "real_slo_attainment": found.real.share,
        "sim_slo_attainment": found.sim.share,
        "real_goodput_rps": found.real.per_s,
        "sim_goodput_rps": found.sim.per_s,
        "real_attainment_by_dim": found.real.by_limit,
        "sim_attainment_by_dim": found.sim.by_limit,
    }


def _throughput(real: float, sim: float) -> JsonObject:
    percent = abs(sim - real) / real if real > 0 else 0.0
    return {"real": real, "sim": sim, "error": sim - real, "percent_error": percent}


def calibration_report(
    found: Calibration,
    noise_floor: Mapping[str, Comparison] | None,
    origin: Callable[[], Provenance],
    compat: bool = False,
) -> Report:
    """Return the answer of a calibration. `noise_floor` is how well a second recording predicts the first."""
    intervals = cache(lambda: intervals_of(found))
    content = partial(json_content, found, noise_floor, intervals)
    return Report(
        title=f"Calibration: recording against {'second recording' if found.is_recording else 'simulation'}",
        origin=origin,
        data=lambda: report_of(found) if compat else content(),
        rows=lambda: [{"metric": name, **flat(each)} for name, each in report_of(found)["metrics"].items()],
        sections=lambda: _sections(found, noise_floor, {} if compat else intervals()),
        remarks=lambda: [*summary_sentences(found, noise_floor), *_verdicts(found)],
        panels=lambda: list(panels_of(found).values()),
        texts={BLIS: lambda: dump_json(report_of(found)) + "\n"},
    )


Intervals = Mapping[str, ConfidenceIntervals]
_STATISTICS = ("mean", "p50", "p90", "p99")


def intervals_of(found: Calibration) -> Intervals:
    """Return the 95 % intervals of each metric's errors."""
    return {name: confidence_intervals(each.real_us, each.sim_us) for name, each in sorted(found.values.items())}


def _sections(
    found: Calibration, noise_floor: Mapping[str, Comparison] | None, intervals: Intervals
) -> Iterator[Section]:
    names = [name for name in NAMES if name in found.metrics]
    rows = [row for name in names for row in _latency_rows(NAMES[name], found.metrics[name], found.other)]
    yield Section(table=TextTable(("latency in ms", "", *_STATISTICS), rows, num_left_aligned=2, num_labels=2))
    for title, metrics in (("prediction", found.metrics), ("second recording", noise_floor or {})):
        rows = [_prediction_row(NAMES[name], metrics[name]) for name in names if name in metrics]
        if rows:
            yield Section(table=TextTable((title, "requests", "MAPE", "r", "grade", "bias"), rows))
    rows = [[NAMES[name], *_interval_cells(intervals[name])] for name in names if name in intervals]
    if rows:
        yield Section(table=TextTable(("95 % intervals", "MAPE", "error of mean", "error of p99", "r"), rows))
    rows = [[each.kind, *step_cells(each.comparison)] for each in found.steps]
    if rows:
        yield Section(table=TextTable(("steps", "number", "mean, ms", "MAPE", "error of mean"), rows))
    real, sim = found.real_throughput, found.sim_throughput
    pairs = {
        "requests/s": (real.requests_per_s, sim.requests_per_s),
        "output tokens/s": (real.output_tokens_per_s, sim.output_tokens_per_s),
        "duration, s": (real.duration_s, sim.duration_s),
    }
    if found.step_totals is not None:
        totals = found.step_totals
        pairs["steps"] = (totals[0].num_steps, totals[1].num_steps)
        pairs["tokens/step"] = (_tokens_per_step(totals[0]), _tokens_per_step(totals[1]))
    rows = [[name, f"{one:,.2f}", f"{other:,.2f}", _signed(one, other)] for name, (one, other) in pairs.items()]
    yield Section(table=TextTable(("throughput", "real", found.other, "error"), rows))
    for name, groups in (("class", found.by_slo_class), ("model", found.by_model), ("tenant", found.by_tenant)):
        rows = [
            [key, f"{group.count:,}", percent(group.ttft_mape), percent(group.e2e_mape)]
            for key, group in groups.items()
        ]
        if rows:
            yield Section(table=TextTable((name, "requests", "TTFT MAPE", "E2E MAPE"), rows))
    if found.goodput is not None:
        yield Section(table=_goodput_table(found.goodput, found.other))


def _tokens_per_step(totals: StepTotals) -> float:
    return totals.num_tokens / max(1, totals.num_steps)


def _latency_rows(label: str, comparison: Comparison, other: str) -> list[list[str]]:
    real = [getattr(comparison.real, name) for name in _STATISTICS]
    sim = [getattr(comparison.sim, name) for name in _STATISTICS]
    return [
        [label, "real", *(f"{value / 1000:,.2f}" for value in real)],
        ["", other, *(f"{value / 1000:,.2f}" for value in sim)],
        ["", "error", *(_signed(one, other) for one, other in zip(real, sim, strict=True))],
    ]


def _prediction_row(label: str, comparison: Comparison) -> list[str]:
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return [label, f"{comparison.count:,}", percent(comparison.mape), r, comparison.quality, comparison.bias]


def _interval_cells(intervals: ConfidenceIntervals) -> list[str]:
    shares = (intervals.mape, intervals.mean_error, intervals.p99_error)
    r = intervals.pearson_r
    return [*(f"{low:.2%} to {high:.2%}" for low, high in shares), f"{r[0]:.3f} to {r[1]:.3f}" if r else "-"]


def _goodput_table(found: Goodput, other: str) -> TextTable:
    rows = [
        [
            name,
            f"{each.count:,}",
            *(percent(side.share) if each.count else "-" for side in (each.real, each.sim)),
            *(f"{side.per_s:,.3f}" for side in (each.real, each.sim)),
        ]
        for name, each in found.classes.items()
    ]
    return TextTable(("within limits", "requests", "real", other, "real/s", f"{other}/s"), rows)


def _verdicts(found: Calibration) -> Iterator[str]:
    if found.hit_rate is not None:
        rates = found.hit_rate
        verdict = "within" if rates.within else "exceeds"
        yield (
            f"KV hit rate: real {percent(rates.real)}, simulated {percent(rates.sim)}, "
            f"{rates.error_pp:.2f} points apart ({verdict} {rates.tolerance_pp:g})"
        )
    error, most = found.metrics["ttft"].mape, found.ttft_threshold
    yield f"TTFT MAPE {percent(error)}: {'within' if error <= most else 'exceeds'} the threshold of {percent(most)}"


def _signed(real: float, sim: float) -> str:
    return f"{(sim - real) / real * 100:+.1f}%" if real > 0 else "-"


def percent(fraction: float) -> str:
    """A fraction in percent."""
    return f"{fraction * 100:.1f}%"


def step_cells(comparison: Comparison) -> list[str]:
    """The number of steps of one kind, the mean of their durations, and the errors of their prediction."""
    error = comparison.sim.mean / comparison.real.mean - 1
    return [
        f"{comparison.count:,}",
        f"{comparison.real.mean / 1000:,.3f}",
        f"{comparison.mape:.2%}",
        f"{error:+.2%}",
    ]


def write_pictures(found: Calibration, folder: Path) -> None:
    """Write the pictures to a folder, as PNG. Raises TraceError."""
    panels = panels_of(found)
    if folder.is_dir():
        check_written([(str(folder / f"{name}.png"), "--plots", "picture") for name in panels], [])
    with naming_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, panel in panels.items():
        write_content(folder / f"{name}.png", panel_png(panel))


def json_content(
    found: Calibration, noise_floor: Mapping[str, Comparison] | None, intervals: Callable[[], Intervals]
) -> dict[str, Any]:
    """Return the report with intervals, words and the noise floor."""
    content = report_of(found) | additions(found)
    content["confidence_95"] = {name: _confidence(each) for name, each in intervals().items()}
    content["in_words"] = summary_sentences(found, noise_floor)
    if found.step_totals is not None:
        real, sim = found.step_totals
        content["throughput"]["num_steps"] = _throughput(real.num_steps, sim.num_steps)
        content["throughput"]["tokens_per_step"] = _throughput(_tokens_per_step(real), _tokens_per_step(sim))
    if found.steps:
        content["steps"] = {
            each.kind.replace(" ", "_"): {
                "count": each.comparison.count,
                "real_mean_us": each.comparison.real.mean,
                "sim_mean_us": each.comparison.sim.mean,
                "mape": each.comparison.mape,
            }
            for each in found.steps
        }
    if noise_floor:
        content["noise_floor"] = {
            name: {"mape": each.mape, "pearson_r": each.pearson_r, "count": each.count}
            for name, each in sorted(noise_floor.items())
        }
    return content


def _confidence(intervals: ConfidenceIntervals) -> dict[str, Any]:
    known = {
        "mape": intervals.mape,
        "mean_percent_error": intervals.mean_error,
        "p99_percent_error": intervals.p99_error,
        "pearson_r": intervals.pearson_r,
    }
    return {name: [*each] for name, each in known.items() if each is not None}
