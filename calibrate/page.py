"""A calibration as one HTML file that needs nothing but a browser."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable
from blis_sim.pictures.page import page, table_html
from calibrate.bootstrap import Confidence, Interval
from calibrate.calibration import Calibration, Group
from calibrate.compare import Comparison
from calibrate.diagnosis import NAMES

_STATISTICS = ("mean", "p50", "p90", "p99")


RECORDING = "recording"


def other_of(found: Calibration) -> str:
    """Return the name of what the recording is compared with."""
    return "second recording" if found.is_recording else "simulation"


def calibration_page(
    found: Calibration,
    words: Sequence[str],
    sureness: Mapping[str, Confidence],
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
        [_prediction_row(name, found, sureness[name], noise_floor) for name in metrics],
    )
    latencies = TextTable(("", "", *_STATISTICS), [row for name in metrics for row in _latency_rows(name, found)], 2)
    errors = TextTable(
        ("", "mean error", "95 % interval", "p99 error", "95 % interval"),
        [_error_row(name, found.metrics[name], sureness[name]) for name in metrics],
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
    return page(f"Calibration: {RECORDING} against {other_of(found)}", origin, words, parts)


def _prediction_row(
    name: str, found: Calibration, sure: Confidence, noise_floor: Mapping[str, Comparison] | None
) -> list[str]:
    comparison = found.metrics[name]
    floor = (noise_floor or {}).get(name)
    return [
        NAMES[name],
        f"{comparison.count:,}",
        f"{comparison.mape:.2%}",
        _interval(sure.mape),
        _r(comparison),
        "-" if sure.pearson_r is None else f"{sure.pearson_r.low:.3f} to {sure.pearson_r.high:.3f}",
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


def _error_row(name: str, comparison: Comparison, sure: Confidence) -> list[str]:
    real, sim = comparison.real, comparison.sim
    mean = f"{sim.mean / real.mean - 1:+.2%}" if real.mean else "-"
    p99 = f"{sim.p99 / real.p99 - 1:+.2%}" if real.p99 else "-"
    return [NAMES[name], mean, _interval(sure.mean_error), p99, _interval(sure.p99_error)]


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
