"""A calibration as one HTML file that needs nothing but a browser."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from calibrate.bootstrap import Confidence, Interval
from calibrate.calibration import Calibration, Group
from calibrate.compare import Comparison
from calibrate.diagnosis import NAMES

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0; }
th, td { white-space: nowrap; padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
figure { display: inline-block; margin: .4rem .4rem .4rem 0; max-width: 100%; }
figcaption { color: #666; font-size: .9rem; }
img { max-width: 100%; height: auto; }
.excellent { color: #1a7f37; } .good { color: #4d7c0f; } .fair { color: #b45309; } .poor { color: #b91c1c; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; } th, td { border-color: #3a3d42; } img { background: #fff; }
  figcaption { color: #aaa; }
  .excellent { color: #56d364; } .good { color: #a3d45b; } .fair { color: #f0a95b; } .poor { color: #ff8b80; }
}
"""
_STATISTICS = ("mean", "p50", "p90", "p99")


def page(
    title: str,
    found: Calibration,
    words: Sequence[str],
    sureness: Mapping[str, Confidence],
    noise_floor: Mapping[str, Comparison] | None,
    pictures: Iterable[tuple[str, str, bytes]],
) -> str:
    """The page: words first, then tables, then pictures."""
    metrics = [name for name in NAMES if name in found.metrics]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(' '.join(words))}</p>",
        "<h2>Single requests</h2>",
        _table(
            ("", "requests", "MAPE", "95 % interval", "r", "95 % interval", "grade", "second run: MAPE / r"),
            [_prediction_row(name, found, sureness[name], noise_floor) for name in metrics],
        ),
        "<h2>All requests together, ms</h2>",
        _table(("", "", *_STATISTICS), [row for name in metrics for row in _latency_rows(name, found)]),
        _table(
            ("", "mean error", "95 % interval", "p99 error", "95 % interval"),
            [_error_row(name, found.metrics[name], sureness[name]) for name in metrics],
        ),
        _throughput(found),
        *(
            _groups(what, groups)
            for what, groups in (
                ("class", found.by_slo_class),
                ("tenant", found.by_tenant),
                ("model", found.by_model),
            )
        ),
        "<h2>Pictures</h2>",
        *map(_figure, pictures),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(parts)}</body></html>\n'


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
        f'<span class="{comparison.quality}">{comparison.quality}</span>',
        "-" if floor is None else f"{floor.mape:.2%} / {_r(floor)}",
    ]


def _latency_rows(name: str, found: Calibration) -> list[list[str]]:
    comparison = found.metrics[name]
    real = [getattr(comparison.real, each) for each in _STATISTICS]
    sim = [getattr(comparison.sim, each) for each in _STATISTICS]
    return [
        [NAMES[name], "real", *(f"{value / 1000:,.2f}" for value in real)],
        ["", found.other, *(f"{value / 1000:,.2f}" for value in sim)],
        ["", "error", *(f"{b / a - 1:+.1%}" if a else "-" for a, b in zip(real, sim, strict=True))],
    ]


def _error_row(name: str, comparison: Comparison, sure: Confidence) -> list[str]:
    real, sim = comparison.real, comparison.sim
    mean = f"{sim.mean / real.mean - 1:+.2%}" if real.mean else "-"
    p99 = f"{sim.p99 / real.p99 - 1:+.2%}" if real.p99 else "-"
    return [NAMES[name], mean, _interval(sure.mean_error), p99, _interval(sure.p99_error)]


def _throughput(found: Calibration) -> str:
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
            label = f"goodput of {escape(name)}, requests/s"
            rows.append([label, f"{real:,.3f}", f"{sim:,.3f}", f"{sim / real - 1:+.1%}" if real else "-"])
    return "<h2>Throughput</h2>" + _table(("", "real", found.other, "error"), rows)


def _groups(what: str, groups: Mapping[str, Group]) -> str:
    if not groups:
        return ""
    rows = [
        [escape(name), f"{group.count:,}", f"{group.ttft_mape:.2%}", f"{group.e2e_mape:.2%}"]
        for name, group in groups.items()
    ]
    return f"<h2>By {what}</h2>" + _table((what, "requests", "TTFT MAPE", "E2E MAPE"), rows)


def _figure(picture: tuple[str, str, bytes]) -> str:
    name, caption, png = picture
    source = f"data:image/png;base64,{b64encode(png).decode()}"
    text = escape(caption)
    return f'<figure id="{name}"><img src="{source}" alt="{text}" width="506"><figcaption>{text}</figcaption></figure>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _interval(interval: Interval) -> str:
    return f"{interval.low:.2%} to {interval.high:.2%}"


def _r(comparison: Comparison) -> str:
    return "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
