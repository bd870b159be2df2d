"""The HTML page of a comparison."""

from collections.abc import Sequence

from blis_sim.bench.compare.picture import panels_of
from blis_sim.bench.compare.sides import Side
from blis_sim.bench.compare.table import Runs, rows_of
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable
from blis_sim.pictures.page import figures_html, page, table_html, write_page


def write_comparison(sides: Sequence[Side], runs: Runs, origin: Provenance, path: str) -> None:
    """Write the table, the pictures of the first run, and the flags of each side. Raises TraceError."""
    head, rows = rows_of(sides, runs)
    lead = [f"{side.name}: {side.flags or 'the defaults'}" for side in sides]
    remark = f"Means of {len(runs)} seeds. The pictures show the first one." if len(runs) > 1 else ""
    parts = [table_html(TextTable(head, rows)), f"<p>{remark}</p>", figures_html(panels_of(sides, runs[0]))]
    title = f"Comparison of {' and '.join(side.name for side in sides)}"
    write_page(path, page(title, origin, (), parts, lead))
