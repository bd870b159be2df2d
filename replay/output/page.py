"""A run as one page: what was computed, the tables, the pictures, and the origin."""

from blis_sim.options.provenance import Provenance
from blis_sim.pictures.page import figures_html, page, table_html
from blis_sim.pictures.style import Panel
from replay.analysis.result import RunResult
from replay.output.findings import Findings
from replay.output.remarks import remarks
from replay.output.table import breakdowns, sections


def run_page(
    title: str,
    result: RunResult,
    found: Findings,
    origin: Provenance,
    panels: list[Panel],
    summarizes_decisions: bool = False,
) -> str:
    """Return the page."""
    parts = [table_html(each.table, each.heading) for each in sections(result)]
    if panels:
        parts += ["<h2>Pictures</h2>", figures_html(panels)]
    parts += [table_html(each.table, each.heading) for each in breakdowns(found, summarizes_decisions)]
    return page(title, origin, remarks(result, found), parts)
