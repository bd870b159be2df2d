"""A result as one HTML file that needs nothing but a browser: light and dark, from a phone's width on."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec
from string import Template

from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import COLORS, DARK_COLORS, GRID, INK, MUTED, TARGET, Panel, panel_png, panel_svg
from blis_sim.report.tables import TextTable

_STYLE = """
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1.2rem 1rem 3rem;
  color: $ink; background: $paper; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .4rem 0; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: .4rem 0; } .origin { color: $muted; }
.remarks { list-style: none; padding: 0; margin: .8rem 0; }
.remarks li { padding: .25rem .7rem; margin: .3rem 0; border-left: 4px solid $grid; background: $card; }
.remarks li.bad { border-color: $target; } .remarks li.good { border-color: $c2; }
.wide { overflow-x: auto; background: linear-gradient(to right, $paper 60%, transparent) 0 0 / 2.5rem 100% local,
  linear-gradient(to left, $paper 60%, transparent) 100% 0 / 2.5rem 100% local,
  linear-gradient(to right, $shade, transparent) 0 0 / .8rem 100% scroll,
  linear-gradient(to left, $shade, transparent) 100% 0 / .8rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { white-space: nowrap; padding: .22rem .8rem .22rem 0; text-align: right; border-bottom: 1px solid $grid; }
th { color: $muted; font-weight: 600; } .left { text-align: left; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .7rem; background: $card; border-radius: 8px; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
figure svg, figure img { width: 100%; height: auto; display: block; }
figure img { background: #fff; border-radius: 4px; }
.facts th { text-align: left; vertical-align: top; } .facts td { text-align: left; white-space: normal;
  overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; }
@media (max-width: 40rem) { th, td { padding-right: .55rem; font-size: 13px; } .facts th { border: 0; }
  .facts th, .facts td { display: block; padding-right: 0; } }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: $card; padding: .7rem; border-radius: 8px;
  font-size: 13px; }
"""


_NAMES = ("ink", "muted", "grid", "target", "paper", "card", "shade", "c2")
"""Variables of the style sheet that its rules use; pictures use all of the palette."""


def _style_variables(colors: Sequence[str], **others: str) -> str:
    known = {**others, **{f"c{number}": color for number, color in enumerate(colors)}}
    return " ".join(f"--{name}: {value};" for name, value in known.items())


_LIGHT = _style_variables(
    COLORS, ink=INK, muted=MUTED, grid=GRID, target=TARGET, paper="#fff", card="#f6f7f8", shade="#0003"
)
_DARK = _style_variables(
    DARK_COLORS,
    ink="#e6e7e8",
    muted="#a3a7ab",
    grid="#3b4046",
    target="#ff7b72",
    paper="#15171a",
    card="#1e2125",
    shade="#fff4",
)


def page(
    title: str,
    origin: Provenance,
    remarks: Iterable[str],
    parts: Iterable[str],
    lead: Iterable[str] = (),
    refresh_s: float = 0.0,
) -> str:
    """Return a page: its title, what was computed, `lead` lines, remarks, the parts, and the whole origin.

    Parts are HTML already. Browsers load the page again every `refresh_s` seconds, never with 0.
    """
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title>"
    head += f'<meta http-equiv="refresh" content="{refresh_s:g}">' if refresh_s else ""
    style = f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    style += f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}"
    style += Template(_STYLE).substitute({name: f"var(--{name})" for name in _NAMES})
    items = "".join(f'<li class="{_remark_class(line)}">{escape(line)}</li>' for line in remarks)
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in origin.rows)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="origin">{escape(origin.title)}</p>' if origin.title else "",
        *(f"<p>{escape(line)}</p>" for line in lead),
        f'<ul class="remarks">{items}</ul>' if items else "",
        *parts,
        f'<h2>Origin</h2><div class="wide" tabindex="0"><table class="facts">{facts}</table></div>',
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{style}</style></head>\n'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _remark_class(line: str) -> str:
    """Return the CSS class of a remark: bad, good or neutral."""
    bad = ("overloaded", "targets MISSED", "MISSED: ", "none meets", "no deployment", "nothing stays", "DRIFT")
    if line.startswith(bad) or ": missed, " in line:
        return "bad"
    good = ("targets met", "met: ", "cheapest", "best: ", "all figures within")
    return "good" if line.startswith(good) or ": targets met, " in line else "plain"


def figures_html(panels: Sequence[Panel]) -> list[str]:
    """Return panels side by side, or below each other where there is no room; nothing without matplotlib."""
    if not panels or find_spec("matplotlib") is None:
        return []
    drawn = "".join(
        f"<figure><figcaption>{escape(panel.title)}</figcaption>{_picture_html(panel)}</figure>" for panel in panels
    )
    return ["<h2>Pictures</h2>", f'<div class="figures">{drawn}</div>']


def _picture_html(panel: Panel) -> str:
    """Return a panel as an element of a page."""
    if not panel.has_many_points:
        return panel_svg(panel)
    return f'<img src="data:image/png;base64,{b64encode(panel_png(panel)).decode()}" alt="{escape(panel.title)}">'


def section_html(heading: str, table: TextTable | None, text: str) -> str:
    """Return a table, which scrolls by itself where it is wider than the page, and lines under their heading."""
    title = f"<h2>{escape(heading)}</h2>" if heading else ""
    lines = f"<pre>{escape(text)}</pre>" if text else ""
    return title + ("" if table is None else _table_html(table)) + lines


def _table_html(table: TextTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        tags = [tag if cell else "td" for cell in cells]  # readers of a screen would announce a head without words
        starts = [f'{tag} class="left"' if place < table.num_left_aligned else tag for place, tag in enumerate(tags)]
        found = zip(starts, cells, tags, strict=True)
        return f"<tr>{''.join(f'<{start}>{escape(cell)}</{tag}>' for start, cell, tag in found)}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    head = f"<thead>{row(table.titles, 'th')}</thead>" if table.titles else ""
    return f'<div class="wide" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'
