"""The pictures of a calibration: PNG files for a folder, or bytes for a page."""

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_sim.pictures.style import COLORS, settings
from calibrate.calibration import Calibration, Values
from calibrate.diagnosis import NAMES, in_flight
from calibrate.errors import CalibrateError
from calibrate.network import Floats

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
            with rc_context(settings()):
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
