"""The HTML page of a comparison."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from blis_sim.bench.compare.picture import svg
from blis_sim.bench.compare.sides import Side
from blis_sim.bench.compare.table import Runs, rows_of
from traces.text_file import write_content

_STYLE = """body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}code{background:#f4f4f4}svg{max-width:100%;height:auto}"""


def write_page(sides: Sequence[Side], runs: Runs, path: str) -> None:
    """Write the table, the picture of the first run, and the flags of each side. Raises TraceError."""
    head, rows = rows_of(sides, runs)
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>Comparison of {escape(' and '.join(side.name for side in sides))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Comparison</h1>",
        "<ul>",
        *(f"<li>{escape(side.name)}: <code>{escape(side.flags or 'the defaults')}</code></li>" for side in sides),
        "</ul><table>",
        f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>",
        *(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
        "</table>",
        f"<p>Means of {len(runs)} seeds. The picture shows the first one.</p>",
        svg(sides, runs[0]),
        "</body></html>",
    ]
    write_content(Path(path), ("\n".join(lines) + "\n").encode())
