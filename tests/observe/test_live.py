import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from observe.figures import Snapshot, percentile_ms, snapshot_line
from observe.live_screen import draw

SNAPSHOT = Snapshot(
    elapsed_s=12.0,
    planned=100,
    sent=60,
    in_flight=7,
    in_line=2,
    finished=50,
    errors=3,
    requested_per_s=5.0,
    sent_per_s=4.9,
    ttft_p50_ms=20.04,
    ttft_p99_ms=31.0,
)

RUN = """
import sys
from observe.command import ObserveOptions, run
url, prefix = sys.argv[1:]
sys.exit(run(ObserveOptions(
    url=url, model="ok", rate=20.0, num_requests=15, prompt_tokens=20, output_tokens=4, output=prefix
)))
"""


def test_a_line_shows_the_state_and_a_dash_for_what_is_unknown() -> None:
    line = snapshot_line(SNAPSHOT)
    assert "sent 60/100 at 4.90 of 5.00/s, in flight 7, in line 2, finished 50, errors 3" in line
    assert "TTFT p50/p99 20.0/31.0 ms, E2E p50/p99 -/- ms" in line


def test_the_table_is_drawn_from_lines_of_json() -> None:
    screen = io.StringIO()
    draw(io.StringIO(json.dumps(asdict(SNAPSHOT)) + "\n"), Console(file=screen, force_terminal=True, width=80))
    shown = screen.getvalue()
    assert "60 of 100 sent" in shown
    assert "31.0" in shown


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (100, 4.0)])
def test_percentiles_are_interpolated(percent: float, expected: float) -> None:
    assert percentile_ms([3_000_000, 1_000_000, 4_000_000, 2_000_000], percent) == expected
    assert percentile_ms([], percent) is None


def test_on_a_terminal_the_table_is_drawn_while_the_run_lasts(server_url: str, tmp_path: Path) -> None:
    terminal, other_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", RUN, server_url, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other_end, env=environment) as process:
        os.close(other_end)
        shown = read_to_end(terminal)
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["completed"] == 15
    assert process.returncode == 0
    assert "of 15 sent" in shown
    assert "in flight" in shown
    assert shown.index("of 15 sent") < shown.index("15 completed, 0 failed")


def read_to_end(terminal: int) -> str:
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # the error of a terminal whose other side is closed
    finally:
        os.close(terminal)
    return shown.decode()
