"""Pictures and pages in one style."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import (
    COLORS,
    DARK_COLORS,
    Panel,
    Points,
    Target,
    bar_panel,
    cdf_panel,
    draw_panels,
    frontier_panel,
    heat_panel,
    panel_svg,
    rc_params,
    style_axes,
    time_panel,
)
from blis_sim.report.pages import figures_html, page, section_html
from blis_sim.report.tables import TextTable

pytest.importorskip("matplotlib")
SVG = "{http://www.w3.org/2000/svg}text"
AT_S = np.arange(5.0)
NARROW, WIDE = np.array([1.0, 2.0, 3.0]), np.array([1.0, 40.0, 5000.0])


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()).strip() for each in ElementTree.fromstring(svg).iter(SVG)]


def panels() -> list[Panel]:
    """One panel of each kind."""
    curve = Points("tp=1", [10, 20, 30], [1, 5, 3], ["rate 1", "rate 2", "rate 3"])
    return [
        cdf_panel("Distribution", "TTFT, ms", {"real": NARROW, "simulated": NARROW}, [Target(2.5, "target, 2.5 ms")]),
        time_panel("Load", "requests", {"running": (AT_S, AT_S), "waiting": (AT_S, AT_S)}),
        frontier_panel("Frontier", "output tokens/s", "p99 TTFT, ms", [curve]),
        heat_panel("Instances", ["instance_0", "instance_1"], 4.0, np.ones((2, 5)), "requests"),
        bar_panel("Costs", "$ per hour", {"H100": 2.0, "L40S": 3.0}, {"H100": "$2.00"}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_equal_panels_give_equal_files(suffix: str, tmp_path: Path) -> None:
    draw_panels(panels(), str(tmp_path / f"one.{suffix}"), "title with $ and $")
    draw_panels(panels(), str(tmp_path / f"two.{suffix}"), "title with $ and $")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_file_has_titles_units_and_legends(tmp_path: Path) -> None:
    draw_panels(panels(), str(tmp_path / "all.svg"))
    drawn = texts((tmp_path / "all.svg").read_text())
    expected = {"Distribution", "TTFT, ms", "real", "simulated", "target, 2.5 ms", "running", "waiting", "frontier"}
    assert expected <= set(drawn)


def test_points_on_the_frontier_are_named_and_others_are_not() -> None:
    drawn = texts(panel_svg(panels()[2]))
    assert [each for each in drawn if each.startswith("rate")] == ["rate 1", "rate 3"]


def test_points_beside_each_other_share_a_name_and_curves_are_named_by_the_legend() -> None:
    curves = [Points("one", [1.0, 10.0], [1.0, 3.0], ["rate 1", "rate 2"]), Points("two", [10.1], [3.1], ["rate 2"])]
    drawn = texts(panel_svg(frontier_panel("Frontier", "output tokens/s", "p99 TTFT, ms", curves)))
    assert [each for each in drawn if each.startswith("rate")] == ["rate 1", "rate 2"]
    assert {"one", "two"} <= set(drawn)


@pytest.mark.parametrize("name", ["a", "engine=sarathi", "prefill_instances=2 decode_instances=6"])
def test_a_legend_is_no_wider_than_its_panel(name: str) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    curves = [Points(f"{name}{number}", [1.0], [1.0], ["rate 1"]) for number in range(4)]
    panel = frontier_panel("Frontier", "output tokens/s", "p99 TTFT, ms", curves)
    with rc_context(rc_params()):
        figure = Figure(figsize=panel.inches, layout="constrained")
        axes = figure.add_subplot()
        style_axes(axes, panel)
        figure.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert axes.get_position().width > 0.7


@pytest.mark.parametrize(("values", "is_log"), [(NARROW, False), (WIDE, True)])
def test_an_axis_is_logarithmic_where_values_span_decades(values: np.ndarray, is_log: bool) -> None:
    drawn = texts(panel_svg(cdf_panel("Distribution", "TTFT, ms", {"TTFT": values})))
    assert ("1,000" in drawn) is is_log


def test_colours_of_an_embedded_picture_are_those_of_the_page() -> None:
    svg = panel_svg(panels()[0])
    assert {"var(--c0)", "var(--c1)", "var(--ink)", "var(--target)"} <= set(re.findall(r"var\(--\w+\)", svg))
    assert COLORS[0] not in svg
    assert len(COLORS) == len(DARK_COLORS)


class Tags(HTMLParser):
    """Open tags and references to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.references += [
            value for name, value in attrs if name in ("src", "href") and value and value[0] not in "#d"
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_needs_nothing_else_and_fits_a_phone_in_light_and_dark() -> None:
    origin = Provenance(command="blis run --model <m>", model="<m>", seed=3)
    table = section_html("Heading", TextTable(["name", "value"], [["<a>", "1"]]), "")
    text = page(
        "Run of <m>",
        origin,
        ["overloaded: much", "targets met: all", "with bursts: missed, by far", "with more: targets met, E2E has 3%"],
        [table, *figures_html(panels())],
        ["lead"],
    )
    parser = Tags()
    parser.feed(text)
    assert (parser.open, parser.references) == ([], [])
    assert text.count("<svg") == 5
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
    assert '<li class="bad">overloaded: much</li><li class="good">targets met: all</li>' in text
    assert '<li class="bad">with bursts: missed' in text
    assert '<li class="good">with more: targets met' in text
    assert '<td class="left">&lt;a&gt;</td>' in text
    assert "<th>seed</th><td>3</td>" in text


def test_two_pictures_of_a_page_have_no_id_in_common() -> None:
    first, second = (set(re.findall(r' id="(m[0-9a-f]{9,}|p[0-9a-f]{9,})"', panel_svg(each))) for each in panels()[:2])
    assert first
    assert second
    assert not first & second
