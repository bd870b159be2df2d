"""The pictures of a calibration, for a folder or for one HTML file that needs nothing but a browser."""

import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable
from blis_sim.pictures.page import page, table_html
from blis_sim.pictures.style import COLORS, rc_params
from calibrate.calibration import NAMES, Calibration, Group, Values, in_flight
from calibrate.compare import Comparison, ConfidenceIntervals, Interval
from calibrate.pair import CalibrateError, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDED, OTHER = COLORS[:2]
_SIZE_INCHES = (4.6, 3.4)
_DOTS_PER_INCH = 110
_NUM_BINS = 12
_NUM_TICKS = 6
"""More of them run into each other where latencies have many digits."""

Draw = Callable[["Axes", str, Values, str], None]


def figures(found: Calibration) -> Iterator[tuple[str, str, bytes]]:
    """File name without suffix, caption and PNG of each picture. Raises CalibrateError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CalibrateError("plots need matplotlib: pip install 'blis-mockserve[plots]'") from error

    other = "second recording" if found.is_recording else "simulation"
    for metric, values in found.values.items():
        for kind, (caption, draw) in _KINDS.items():
            buffer = io.BytesIO()
            with rc_context(rc_params()):
                figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
                draw(figure.add_subplot(), NAMES[metric], values, other)
                # Without a date or version in it, the same figures give the same bytes.
                figure.savefig(buffer, format="png", metadata={"Software": None})
            yield f"{metric}-{kind}", f"{NAMES[metric]}: {caption.format(other=other)}", buffer.getvalue()


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
    axes.legend(frameon=False)


def _over_time(axes: "Axes", name: str, values: Values, _other: str) -> None:
    sent_s = np.array([row.send_time_us for row in values.rows], np.float64) / 1e6
    _errors(axes, name, values, sent_s - sent_s.min(), "sent after, s")


def _by_load(axes: "Axes", name: str, values: Values, _other: str) -> None:
    _errors(axes, name, values, in_flight(values), "requests in flight when sent")


def _by_input(axes: "Axes", name: str, values: Values, _other: str) -> None:
    inputs = [row.server_input_tokens or row.input_tokens for row in values.rows]
    _errors(axes, name, values, np.array(inputs, np.float64), "prompt, tokens")


def _by_output(axes: "Axes", name: str, values: Values, _other: str) -> None:
    _errors(axes, name, values, np.array([row.output_tokens for row in values.rows], np.float64), "output, tokens")


def _errors(axes: "Axes", name: str, values: Values, cause: Floats, label: str) -> None:
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


_KINDS: dict[str, tuple[str, Any]] = {
    "scatter": ("{other} against recording, each request", _scatter),
    "cdf": ("distributions", _cdf),
    "load": ("error against load", _by_load),
    "time": ("error over time", _over_time),
    "input": ("error by prompt length", _by_input),
    "output": ("error by output length", _by_output),
}


_STATISTICS = ("mean", "p50", "p90", "p99")


RECORDING = "recording"


def other_of(found: Calibration) -> str:
    """Return the name of what the recording is compared with."""
    return "second recording" if found.is_recording else "simulation"


def calibration_page(
    found: Calibration,
    sentences: Sequence[str],
    intervals: Mapping[str, ConfidenceIntervals],
    noise_floor: Mapping[str, Comparison] | None,
    pictures: Iterable[tuple[str, str, bytes]],
    origin: Provenance,
) -> str:
    """Return the page of a calibration: words first, then tables, then pictures."""
    metrics = [name for name in NAMES if name in found.metrics]
    single = TextTable(
        (
            *("", "requests", "MAPE", "95 % interval", "r", "95 % interval", "grade"),
            *(("second run: MAPE / r",) if noise_floor else ()),
        ),
        [_prediction_row(name, found, intervals[name], noise_floor) for name in metrics],
    )
    latencies = TextTable(("", "", *_STATISTICS), [row for name in metrics for row in _latency_rows(name, found)], 2)
    errors = TextTable(
        ("", "mean error", "95 % interval", "p99 error", "95 % interval"),
        [_error_row(name, found.metrics[name], intervals[name]) for name in metrics],
    )
    groups = {"class": found.by_slo_class, "tenant": found.by_tenant, "model": found.by_model}
    parts = [
        table_html(single, "Single requests"),
        table_html(latencies, "All requests together, ms"),
        table_html(errors),
        table_html(_throughput(found), "Throughput"),
        *(table_html(_groups(what, each), f"By {what}") for what, each in groups.items() if each),
        f'<h2>Pictures</h2><div class="figures">{"".join(map(_figure, pictures))}</div>',
    ]
    return page(f"Calibration: {RECORDING} against {other_of(found)}", origin, sentences, parts)


def _prediction_row(
    name: str, found: Calibration, intervals: ConfidenceIntervals, noise_floor: Mapping[str, Comparison] | None
) -> list[str]:
    comparison = found.metrics[name]
    floor = (noise_floor or {}).get(name)
    return [
        NAMES[name],
        f"{comparison.count:,}",
        f"{comparison.mape:.2%}",
        _interval(intervals.mape),
        _r(comparison),
        "-" if intervals.pearson_r is None else f"{intervals.pearson_r.low:.3f} to {intervals.pearson_r.high:.3f}",
        comparison.quality,
        *(("-" if floor is None else f"{floor.mape:.2%} / {_r(floor)}",) if noise_floor else ()),
    ]


def _latency_rows(name: str, found: Calibration) -> list[list[str]]:
    comparison = found.metrics[name]
    real = [getattr(comparison.real, each) for each in _STATISTICS]
    sim = [getattr(comparison.sim, each) for each in _STATISTICS]
    return [
        [NAMES[name], RECORDING, *(f"{value / 1000:,.2f}" for value in real)],
        ["", other_of(found), *(f"{value / 1000:,.2f}" for value in sim)],
        ["", "error", *(f"{b / a - 1:+.1%}" if a else "-" for a, b in zip(real, sim, strict=True))],
    ]


def _error_row(name: str, comparison: Comparison, intervals: ConfidenceIntervals) -> list[str]:
    real, sim = comparison.real, comparison.sim
    mean = f"{sim.mean / real.mean - 1:+.2%}" if real.mean else "-"
    p99 = f"{sim.p99 / real.p99 - 1:+.2%}" if real.p99 else "-"
    return [NAMES[name], mean, _interval(intervals.mean_error), p99, _interval(intervals.p99_error)]


def _throughput(found: Calibration) -> TextTable:
    rows = []
    for label, name in (
        ("requests/s", "requests_per_s"),
        ("output tokens/s", "output_tokens_per_s"),
        ("duration, s", "duration_s"),
    ):
        real, sim = getattr(found.real_throughput, name), getattr(found.sim_throughput, name)
        rows.append([label, f"{real:,.2f}", f"{sim:,.2f}", f"{sim / real - 1:+.1%}" if real else "-"])
    if found.goodput is not None:
        for name, each in found.goodput.classes.items():
            real, sim = each.real.per_s, each.sim.per_s
            label = f"goodput of {name}, requests/s"
            rows.append([label, f"{real:,.3f}", f"{sim:,.3f}", f"{sim / real - 1:+.1%}" if real else "-"])
    return TextTable(("", RECORDING, other_of(found), "error"), rows)


def _groups(what: str, groups: Mapping[str, Group]) -> TextTable:
    rows = [
        [name, f"{group.count:,}", f"{group.ttft_mape:.2%}", f"{group.e2e_mape:.2%}"] for name, group in groups.items()
    ]
    return TextTable((what, "requests", "TTFT MAPE", "E2E MAPE"), rows)


def _figure(picture: tuple[str, str, bytes]) -> str:
    name, caption, png = picture
    source = f"data:image/png;base64,{b64encode(png).decode()}"
    text = escape(caption)
    return f'<figure id="{name}"><figcaption>{text}</figcaption><img src="{source}" alt="{text}"></figure>'


def _interval(interval: Interval) -> str:
    return f"{interval.low:.2%} to {interval.high:.2%}"


def _r(comparison: Comparison) -> str:
    return "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
