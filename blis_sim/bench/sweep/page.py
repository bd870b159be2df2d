"""A sweep as one page: the points worth a look, the frontier, and the origin."""

from blis_sim.bench.frontier_plot import frontier_panels
from blis_sim.bench.sweep.frontier import curves_of
from blis_sim.bench.sweep.printed import SweepResult, head_of, notes_of, shown_table
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import duration
from blis_sim.pictures.page import figures_html, page, table_html, write_page
from blis_sim.pictures.panels import Target


def sweep_page(result: SweepResult, origin: Provenance) -> str:
    """Return the page of a sweep in which a point served requests."""
    limits = result.ttft_limits_ms
    targets = [Target(limit_ms, f"target of {name}, {duration(limit_ms)}") for name, limit_ms in limits.items()]
    curves = curves_of(result.answered, result.table.gpu_cost_per_hour)
    panels = frontier_panels(curves, {"ttft_ms": targets})
    remarks = [head_of(result).removesuffix(":"), *notes_of(result)]
    parts = [table_html(shown_table(result)), "<h2>Pictures</h2>", figures_html(panels)]
    return page(f"Sweep of {origin.model}", origin, remarks, parts)


def write_sweep_page(path: str, result: SweepResult, origin: Provenance) -> None:
    """Write the page of a sweep in which a point served requests. Raises TraceError."""
    write_page(path, sweep_page(result, origin))
