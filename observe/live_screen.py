"""The live table, drawn by a process of its own: snapshots come as lines of JSON on standard input."""

import json
import sys
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from observe.figures import Snapshot, milliseconds


def draw(lines: TextIO, console: Console) -> None:
    """Redraw the table with each line, until there are no more."""
    with Live(console=console, auto_refresh=False) as live:
        for line in lines:
            live.update(build_table(Snapshot(**json.loads(line))), refresh=True)


def build_table(snapshot: Snapshot) -> Table:
    """The table of one moment."""
    table = Table(title=f"{snapshot.elapsed_s:.0f} s, {snapshot.sent} of {snapshot.planned} sent")
    for column in ("", "now", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    table.add_row("asked /s", f"{snapshot.requested_per_s:.2f}", "", "")
    table.add_row("sent /s", f"{snapshot.sent_per_s:.2f}", "", "")
    table.add_row("in flight", str(snapshot.in_flight), "", "")
    table.add_row("in line", str(snapshot.in_line), "", "")
    table.add_row("finished", str(snapshot.finished), "", "")
    table.add_row("errors", str(snapshot.errors), "", "", style="red" if snapshot.errors else "")
    table.add_row("TTFT", "", milliseconds(snapshot.ttft_p50_ms), milliseconds(snapshot.ttft_p99_ms))
    table.add_row("E2E", "", milliseconds(snapshot.e2e_p50_ms), milliseconds(snapshot.e2e_p99_ms))
    table.add_row("send lag", "", "", milliseconds(snapshot.lag_p99_ms))
    return table


if __name__ == "__main__":
    draw(sys.stdin, Console(file=sys.stderr))
