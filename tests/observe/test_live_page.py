"""The page that shows a run while it goes on: what it serves, to whom, and that it needs nothing else."""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from observe.command import run
from observe.options import ObserveOptions
from tests.observe.conftest import Holding
from tests.observe.run_in_process import started
from tests.patience import wait_until


def answer(url: str, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request with these headers, byte by byte, as no client of this machine would send them."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    lines = {"host": f"{host}:{port}", **headers}
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    first, *fields = received.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")
    return int(first.split()[1]), dict(each.split(": ", 1) for each in fields), received.split(b"\r\n\r\n", 1)[1]


@pytest.fixture
def live(server_url: str, holding: Holding, tmp_path: Path) -> Iterator[str]:
    """The address of the page of a run that goes on until the server is released."""
    holding.after(3)
    values: dict[str, Any] = {"url": server_url, "model": "ok", "rate": 200.0, "num_requests": 8, "live_html": 0}
    with started(ObserveOptions(**values, output_tokens=4, output=str(tmp_path / "out"))) as process:
        assert process.stderr is not None
        found = re.fullmatch(r"live at (http://127\.0\.0\.1:\d+/)\n", process.stderr.readline())
        assert found is not None
        yield found[1]
        holding.release()
        assert process.wait(30) == 0
        assert_closed(found[1])


def assert_closed(url: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        answer(url)


def test_the_page_shows_the_run_while_it_goes_on(live: str) -> None:
    def snapshots() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(answer(live, "/snapshots?from=0")[2])["snapshots"]
        return found

    wait_until(lambda: bool(snapshots()) and snapshots()[-1]["finished"] == 3)
    last = snapshots()[-1]
    assert (last["planned"], last["sent"], last["in_flight"]) == (8, 8, 5)
    assert last["ttft_p50_ms"] > 0
    following = json.loads(answer(live, "/snapshots?from=1")[2])
    assert following["next"] >= len(following["snapshots"]) + 1


def test_the_page_is_one_file_without_others(live: str) -> None:
    status, headers, body = answer(live)
    page = body.decode()
    assert status == 200
    assert not re.findall(r"""(?:src|href)=(?!"data:)|@import|url\(""", page)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "'unsafe-inline'" not in headers["content-security-policy"].split("script-src")[1].split(";")[0]


def test_no_other_site_and_no_other_path_is_answered(live: str) -> None:
    assert answer(live, host="evil.example")[0] == 403
    assert answer(live, method="POST")[0] == 403
    assert answer(live, "/../../etc/passwd")[0] == 404
    assert answer(live, "/snapshots?from=" + "9" * 400)[0] == 200
    assert b"access-control" not in str(answer(live, origin="http://evil.example")[1]).lower().encode()


def test_an_address_that_is_taken_ends_the_run_before_anything_is_sent_or_moved(
    server_url: str, seen: Callable[[], list[dict[str, Any]]], tmp_path: Path, capsys: Any
) -> None:
    earlier = tmp_path / "x.csv"
    earlier.write_text("request_id,input_tokens,output_tokens,arrival_time_us\n1,2,3,4\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values: dict[str, Any] = {"url": server_url, "model": "ok", "rate": 200.0, "num_requests": 2}
        for processes in (None, 2):
            made = ObserveOptions(**values, live_html=port, processes=processes, output=str(tmp_path / "x"))
            assert run(made) == 1
            assert f"error: --live-html cannot listen on port {port}: address already in use" in capsys.readouterr().err
    assert seen() == []
    assert earlier.read_text().endswith("1,2,3,4\n")


def test_the_script_runs_in_a_browser_engine_as_it_is_written() -> None:
    """Only the syntax, where Node is there; the page was looked at in browsers by hand."""
    page = (Path(__file__).parents[2] / "observe" / "live_page.html").read_text()
    script = page.split("<script>")[1].split("</script>")[0]
    try:
        found = subprocess.run(["node", "--check", "-"], input=script, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("Node is not installed")
    assert found.returncode == 0, found.stderr
