"""The panels of a frontier: what throughput costs in latency, and where a price is known, in money."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blis_sim.pictures import panels
from blis_sim.pictures.panels import Target, frontier, frontier_panel
from blis_sim.pictures.style import Panel, draw_panels

__all__ = ["Curve", "draw_frontier", "frontier", "frontier_panels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points that belong together. Throughput in output tokens per second; a label stands beside each point."""

    name: str
    throughput: Sequence[float]
    ttft_ms: Sequence[float]
    itl_ms: Sequence[float]
    labels: Sequence[str]
    cost: Sequence[float] = ()
    """Dollars per million output tokens, empty where no price is known."""


def draw_frontier(curves: Sequence[Curve], path: str, title: str = "") -> None:
    """Draw p99 TTFT and ITL, and the cost if there is one, against throughput, to a .png, .svg or .pdf.

    Raises TraceError.
    """
    draw_panels(frontier_panels(curves), path, title)


def frontier_panels(curves: Sequence[Curve], targets: Mapping[str, Sequence[Target]] | None = None) -> list[Panel]:
    """Return a panel for p99 TTFT, p99 ITL and the cost; a line joins the points that no other one beats in both.

    `targets` are by name of the figure: `ttft_ms`, `itl_ms`.
    """
    shown = [
        ("p99 TTFT against throughput", "p99 TTFT, ms", "ttft_ms"),
        ("p99 ITL against throughput", "p99 ITL, ms", "itl_ms"),
    ]
    if any(curve.cost for curve in curves):
        shown.append(("Cost against throughput", "$ per million output tokens", "cost"))
    return [
        frontier_panel(
            title,
            "output tokens/s",
            label,
            [panels.Curve(each.name, each.throughput, getattr(each, name), each.labels) for each in curves],
            (targets or {}).get(name, ()),
        )
        for title, label, name in shown
    ]
