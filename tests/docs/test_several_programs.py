"""Commands of pages that need several programs at once: two servers, a collector of spans, another program's name."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PROJECT, Command, Fence, fences
from tests.docs.terminal import Terminal, missing_lines
from tests.wings.inference_sim.test_inference_sim import simulator
from tests.wire.test_request_spans import collecting


def fence_for(page: str, test: str) -> Fence:
    """The fence of "serve.md", "playback.md" or "llm-d-inference-sim.md" that this test executes."""
    found = (each for each in fences(PROJECT / "docs" / page) if each.executed_by is not None)
    return next(each for each in found if each.executed_by is not None and each.executed_by[1] == test)


def check(terminal: Terminal, command: Command, replaced: dict[str, str] | None = None) -> None:
    """Execute a command with other addresses, and look for the lines that the page shows."""
    text = command.text
    for shown, meant in (replaced or {}).items():
        text = text.replace(shown, meant)
    printed = terminal.execute(Command(text, ()))
    for shown, meant in (replaced or {}).items():
        printed = printed.replace(meant, shown)
    assert missing_lines(command, printed) == [], printed


def of_clients(spans: list[dict[str, Any]]) -> set[str]:
    """Return the names of the spans that the load client sent."""
    return {span["span"] for span in spans if span["scope"] == "blis-observe"}


@pytest.mark.slow
def test_spans_of_client_and_server_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting, serving, observing = fence_for("serve.md", "test_spans_of_client_and_server_are_joined").commands
    terminal = Terminal(tmp_path)
    with collecting(monkeypatch) as found:
        assert exporting.text == "export OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
        replaced = {"http://localhost:4318/v1/traces": found.url}
        try:
            check(terminal, serving, replaced)
            check(terminal, observing, replaced)
            spans: list[dict[str, Any]] = []
            while sum(bool(span["parent"]) for span in spans) < 2 or len(of_clients(spans)) < 2:
                spans += found.taken(1)
        finally:
            terminal.close()
    assert {span["parent"] for span in spans if span["parent"]} == of_clients(spans)
    assert len(of_clients(spans)) == 2


@pytest.mark.slow
def test_grpc_streams_tokens(tmp_path: Path) -> None:
    pytest.importorskip("smg_grpc_proto")
    serving, asking = fence_for("serve.md", "test_grpc_streams_tokens").commands
    terminal = Terminal(tmp_path)
    try:
        check(terminal, serving)
        check(terminal, asking, {"python3": sys.executable})
    finally:
        terminal.close()


@pytest.mark.slow
def test_missing_replies_are_forwarded_once(tmp_path: Path) -> None:
    upstream, playing, *rest = fence_for("playback.md", "test_missing_replies_are_forwarded_once").commands
    (recording,) = (
        command
        for fence in fences(PROJECT / "docs" / "playback.md")
        for command in fence.commands
        if command.text.endswith("> one.content.jsonl")
    )
    folders = tmp_path / "a", tmp_path / "b"
    for each in folders:
        each.mkdir()
    other, terminal = map(Terminal, folders)
    try:
        check(other, upstream, {" --port 8001": ""})
        check(terminal, recording)
        check(terminal, playing, {"localhost:8001": f"127.0.0.1:{other.port}"})
        for command in rest:
            check(terminal, command)
        lines = (tmp_path / "b" / "one.content.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["body"] == '{"prompt": "Twice"}'
    finally:
        terminal.close()
        other.close()


@pytest.mark.slow
def test_the_simulator_is_changed_while_it_runs(tmp_path: Path) -> None:
    page = "llm-d-inference-sim.md"
    terminal = Terminal(tmp_path)
    with simulator() as (address,):
        for each in fence_for(page, "test_the_simulator_is_changed_while_it_runs").commands:
            check(terminal, each, {"http://localhost:8000": address.replace("0.0.0.0", "127.0.0.1")})
