"""A search of engine settings as a picture, and as one page: the best rates, all simulations, and the origin."""

from collections.abc import Mapping, Sequence

from blis_sim.bench.frontier_plot import Curve, frontier_panels
from blis_sim.bench.tune.setup import Setup, best_line, rate_text, table_of
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import duration
from blis_sim.pictures.page import figures_html, page, table_html
from blis_sim.pictures.panels import Target
from blis_sim.pictures.style import Panel, draw_panels


def draw(path: str, setups: Sequence[Setup], limits_ms: Mapping[str, float]) -> None:
    """Draw all simulations, a colour per combination. Raises TraceError."""
    draw_panels(tune_panels(setups, limits_ms), path)


def tune_page(
    setups: Sequence[Setup], varied: Sequence[str], limits_ms: Mapping[str, float], origin: Provenance
) -> str:
    """Return the page of a search in which a simulation served requests."""
    remarks = [best_line(setups)]
    lead = [f"limits: {', '.join(_limits(limits_ms).values())}"] if limits_ms else []
    parts = ["<h2>The highest rate of each combination</h2>", table_html(table_of(setups, varied))]
    parts += ["<h2>All simulations of the search</h2>", figures_html(tune_panels(setups, limits_ms))]
    return page(f"Engine settings for {origin.model}", origin, remarks, parts, lead)


def _limits(limits_ms: Mapping[str, float]) -> dict[str, str]:
    """Return each limit in words by the figure of a row that it holds for, such as `TTFT p99 1 s`."""
    names = {figure: figure.removesuffix("_ms").split("_") for figure in limits_ms}
    return {
        figure: f"{latency.upper()} {percentile} {duration(limits_ms[figure])}"
        for figure, (latency, percentile) in names.items()
    }


def tune_panels(setups: Sequence[Setup], limits_ms: Mapping[str, float]) -> list[Panel]:
    """Return p99 latencies against throughput, with the limits that hold for the 99th percentile."""
    words = _limits(limits_ms)
    targets = {
        f"{name}_ms": [Target(limits_ms[figure], f"limit of {words[figure]}")]
        for name in ("ttft", "itl")
        if (figure := f"{name}_p99_ms") in limits_ms
    }
    return frontier_panels([curve for curve in map(_curve, setups) if curve.throughput], targets)


def _curve(setup: Setup) -> Curve:
    tries = [trial for trial in setup.trials if trial.found.figures.get("tokens_per_sec")]
    figures = [trial.found.figures for trial in tries]
    return Curve(
        name=setup.point.label,
        throughput=[each["tokens_per_sec"] or 0 for each in figures],
        ttft_ms=[each["ttft_p99_ms"] or 0 for each in figures],
        itl_ms=[each["itl_p99_ms"] or 0 for each in figures],
        labels=[f"{rate_text(trial.rate)}/s" if trial is setup.best else "" for trial in tries],
    )
