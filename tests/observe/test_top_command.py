"""`blis top` against a server over a socket, on a terminal and away from one."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from observe.errors import RunError
from observe.top import (
    ALL,
    EngineStats,
    Percentile,
    build_table,
    format_line,
    format_short,
    names_of,
    parse_dashboard_figures,
    parse_metrics_page,
    percentiles_ms,
    read_url,
    with_dashboard_stats,
)
from observe.top_command import TopOptions, run
from tests import fork_server
from tests.observe.test_top_figures import page_of
from tests.patience import PATIENCE_S

PAGES = [page_of(running=number, tokens=100 * number, ttft=(0, 10 * number, 10 * number)) for number in range(50)]
FIGURES = EngineStats(
    running=3,
    waiting=1,
    kv_usage_fraction=0.25,
    requests_per_s=2,
    prompt_tokens_per_s=1000,
    output_tokens_per_s=20,
    steps_per_s=50,
    preemptions_per_s=0,
    ttft=(Percentile(0.0201), Percentile(0.031), Percentile(80, ">")),
)


@contextmanager
def server_of(answers: list[tuple[int, str]]) -> Iterator[str]:
    """A server that gives one answer after the other, each a status and a body, and the last one for ever."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[min(len(seen), len(answers) - 1)]
            seen.append(self.path)
            status = status if self.path == "/metrics" else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_away_from_a_terminal_each_report_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, page) for page in PAGES]) as url:
        assert run(TopOptions(url=url, interval=0.1, count=3)) == 0
    written = capsys.readouterr()
    lines = written.out.splitlines()
    assert [line.split(", ")[0].split(" ", 1)[1] for line in lines] == ["running 1", "running 2", "running 3"]
    assert all("TTFT p50 / p90 / p99 ms 150.0 / 190.0 / 199.0" in line for line in lines)
    assert written.err == ""


def test_each_report_is_a_line_of_json_with_the_figures_of_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, page) for page in PAGES]) as url:
        assert run(TopOptions(url=url, interval=0.1, count=2, json=True)) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["engines"]["0"]["running"] for each in (first, second)] == [1, 2]
    figures = first["engines"]["0"]
    assert (figures["ttft_p50_ms"], figures["ttft_p99_ms"], figures["itl_p50_ms"]) == (150.0, 199.0, None)


def test_rows_of_csv_have_one_line_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, page) for page in PAGES]) as url:
        assert run(TopOptions(url=url, interval=0.1, count=2, format="csv")) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["engine"], row["running"], row["ttft_p50_ms"]) for row in rows] == [
        ("0", "1.0", "150.0"),
        ("0", "2.0", "150.0"),
    ]


def test_several_servers_are_rows_by_their_ports_and_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, page) for page in PAGES]) as one, server_of([(200, page) for page in PAGES[10:]]) as other:
        assert run(TopOptions(url=f"{one},{other}", interval=0.1, count=2, json=True)) == 0
    _, second = map(json.loads, capsys.readouterr().out.splitlines())
    ports = [each.rpartition(":")[2] for each in (one, other)]
    assert {name: each["running"] for name, each in second["engines"].items()} == {ports[0]: 2, ports[1]: 12, ALL: 14}
    rates = [second["engines"][name]["output_tokens_per_s"] for name in (*ports, ALL)]
    assert rates[0] + rates[1] == pytest.approx(rates[2])


def test_of_several_servers_one_that_fails_is_left_out_and_counts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        server_of([(200, page) for page in PAGES]) as one,
        server_of([(200, PAGES[0]), (503, ""), (200, PAGES[40])]) as other,
    ):
        assert run(TopOptions(url=f"{one},{other}", interval=0.1, count=2, json=True)) == 0
    written = capsys.readouterr()
    first, second = map(json.loads, written.out.splitlines())
    assert written.err == f"warning: cannot read {other}/metrics: status 503\n"
    assert [each["running"] for each in first["engines"].values()] == [1]
    again = second["engines"][other.rpartition(":")[2]]
    assert (again["running"], again["output_tokens_per_s"]) == (40, 0)


def test_servers_on_several_hosts_have_their_addresses_as_names() -> None:
    servers = TopOptions(url="http://a:8000,http://b:8000/metrics,http://a:8000").servers
    assert names_of(servers) == ["a:8000", "b:8000"]
    assert names_of(servers[:1]) == [""]


def test_the_address_of_the_page_itself_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, page_of())]) as url:
        assert run(TopOptions(url=f"{url}/metrics", interval=0.1, count=1)) == 0
    assert "running 0" in capsys.readouterr().out


def test_a_server_that_fails_for_a_while_is_reported_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([(200, PAGES[0]), (503, ""), (200, PAGES[2])]) as url:
        assert run(TopOptions(url=url, interval=0.1, count=2)) == 0
    written = capsys.readouterr()
    assert written.err == f"warning: cannot read {url}/metrics: status 503\n"
    assert "running 2" in written.out


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((404, ""), "cannot read {}/metrics: status 404"),
        ((200, "# TYPE up gauge\nup 1\n"), "cannot use {}/metrics: it holds no metrics of vLLM"),
    ],
)
def test_a_server_that_is_no_vllm_is_one_line_and_code_1(
    answer: tuple[int, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_of([answer]) as url:
        assert run(TopOptions(url=url, count=1)) == 1
    assert capsys.readouterr().err == f"blis top: error: {complaint.format(url)}\n"


def test_a_missing_server_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of([]) as url:
        pass
    assert run(TopOptions(url=url, count=1)) == 1
    assert capsys.readouterr().err == f"blis top: error: cannot read {url}/metrics: Connection refused\n"


def blis(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blis_sim.cli", "top", *arguments]
    return fork_server.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nowhere",), "URL must be like http://host:port, got 'nowhere'"),
        (("http://x?key=planted",), "URL must be like http://host:port, got 'http://x'"),
        (("http://ann:planted@x:p",), "URL must not carry a user name or password, give --api-key"),
        (("http://x", "--interval", "0"), "--interval must be at least 0.1, got 0.0"),
    ],
)
def test_bad_settings_are_one_line_and_code_2(arguments: tuple[str, ...], complaint: str) -> None:
    done = blis(*arguments)
    assert (done.returncode, done.stderr) == (2, f"blis top: error: {complaint}\n")


def test_a_page_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observe.top.MOST_PAGE_BYTES", 1 << 10)
    with server_of([(200, "x" * 2000)]) as url, pytest.raises(RunError, match="/metrics: more than 0 MB"):
        read_url(f"{url}/metrics", None)


def test_on_a_terminal_it_is_a_table() -> None:
    ours, theirs = pty.openpty()
    with server_of([(200, page) for page in PAGES]) as url:
        command = [sys.executable, "-m", "blis_sim.cli", "top", url, "--interval", "0.1", "--count", "2"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            shown = read_all(ours)
            assert process.wait(60) == 0
    for text in (f"m on {url}", "running", "errors none", "TTFT p90 190 ms"):
        assert text in shown


def read_all(terminal: int) -> str:
    """Return the text written to a terminal until its other side is closed."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        while True:
            try:
                data = reader.read(65536)
            except OSError:  # how Linux ends it
                return shown.decode()
            if not data:
                return shown.decode()
            shown += data


BUSY = replace(
    FIGURES,
    running=99_999,
    waiting=99_999,
    kv_usage_fraction=1,
    requests_per_s=99_999,
    prompt_tokens_per_s=123_456_789,
    output_tokens_per_s=999_949,
    ttft=(Percentile(0.01, "<"), Percentile(100), Percentile(9_999_999, ">")),
    itl=(Percentile(0.01, "<"), Percentile(100), Percentile(9_999_999, ">")),
)


def shown(figures: dict[str, EngineStats], height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(build_table("m", figures, height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_names_of_a_page_control_no_terminal_and_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    (name,) = parse_metrics_page(page_of().replace('model_name="m"', 'model_name="\x1b[2J[red]m"')).model_names
    console.print(build_table(name, {"[bold]0": FIGURES}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"\x1b[2J[red]m" in text
    assert "[bold]0" in text


def test_the_table_has_a_row_for_each_engine_and_the_lag_of_a_mock_server() -> None:
    text = shown({"0": FIGURES, "1": FIGURES, ALL: FIGURES})
    rows = [line.split()[:5] for line in text.splitlines()]
    for name in ("all", "0", "1"):
        assert [name, "3", "1", "25.0", "2.00"] in rows
    assert "send lag" not in text
    assert "send lag" not in format_line({"0": FIGURES})
    lagging = {"0": replace(FIGURES, lag=(Percentile(0.001),))}
    assert "send lag p50 / p90 / p99 1.0 ms" in shown(lagging)
    assert "send lag p50 / p90 / p99 ms 1.0" in format_line(lagging)


@pytest.mark.parametrize("number", [1, 4, 40, 1000])
def test_any_number_of_busy_engines_fits_a_terminal_of_80_columns_and_24_lines(number: int) -> None:
    figures = {str(engine): replace(BUSY, running=engine) for engine in range(number)}
    text = shown({**figures, ALL: BUSY} if number > 1 else figures)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert f"\n{number - 1} " in text  # the engine with the most requests
    if number > 15:
        assert f"and {number - 15:,} engines more" in text


@pytest.mark.parametrize("place", range(-60, 120, 7))
def test_a_number_has_at_most_6_characters_and_two_digits_or_more(place: int) -> None:
    value = 10 ** (place / 10)
    text = format_short(value)
    assert len(text) <= 6
    number = float(text.rstrip("kMG").replace(",", "")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    assert number == pytest.approx(value, rel=0.05, abs=0.005)


OWN = {
    "server": {
        "gpu": "H100",
        "tp": 2,
        "dp": 1,
        "speed": 10.0,
        "faults": {"rate_limit": 0.1},
        "engine_faults": ["slow"],
    },
    "figures": {
        "errors_by_status": {"429": 1200},
        "engines": [{"engine": 0, "ttft_ms": [20.0, 30.0, 40.0], "itl_ms": None}],
        "now": {f"{name}_p{each}_ms": [float(each)] for name in ("ttft", "itl") for each in (50, 90, 99)},
    },
}


def test_figures_of_the_mock_server_itself_take_the_place_of_buckets() -> None:
    own = parse_dashboard_figures(json.dumps(OWN))
    assert own.settings == "H100 x 2, tp 2; speed 10x; faults rate_limit 10%, slow; errors 429: 1,200"
    found = with_dashboard_stats({"0": FIGURES, "1": FIGURES, ALL: FIGURES}, own)
    assert [percentiles_ms(each.ttft) for each in found.values()] == [
        "20.0 / 30.0 / 40.0",
        percentiles_ms(FIGURES.ttft),
        "50.0 / 90.0 / 99.0",
    ]
    assert found["0"].itl == []


def test_percentiles_that_are_unknown_show_as_such() -> None:
    assert percentiles_ms(FIGURES.ttft) == "20.1 / 31.0 / > 80,000.0"
    assert percentiles_ms(()) == "-"
