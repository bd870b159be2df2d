"""The pictures of a calibration."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.report.figures import COLORS, Panel
from calibrate.calibration import NAMES, Calibration, Values, in_flight
from calibrate.compare import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


Draw = Callable[["Axes", str, Values, str], None]
_KINDS: Mapping[str, tuple[str, Draw]] = {
    "scatter": ("{other} against recording, each request", _scatter),
    "cdf": ("distributions", _cdf),
    "load": ("error against load", _by_load),
    "time": ("error over time", _over_time),
    "input": ("error by prompt length", _by_input),
    "output": ("error by output length", _by_output),
}
