"""A load on a server as one page: the summary, the pictures, and the origin."""

from collections.abc import Sequence
from html import escape
from typing import Any

from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.pictures.page import figures_html, page, write_page
from blis_sim.pictures.style import Panel


def write_load_page(
    path: str, program: str, options: Any, summary: str, panels: Sequence[Panel], model: str, seed: int | None
) -> None:
    """Write the page of a load with these options. Raises TraceError."""
    origin = Provenance(command=command_line(program, options), model=model, seed=seed, inputs=input_hashes(options))
    parts = [f"<pre>{escape(summary.strip())}</pre>"]
    if panels:
        parts += ["<h2>Pictures</h2>", figures_html(panels)]
    write_page(path, page(f"Load on {model}", origin, (), parts))
