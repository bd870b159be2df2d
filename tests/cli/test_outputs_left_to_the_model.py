"""`blis observe --unconstrained-output` on a server that refuses more tokens than its context has, as vLLM does."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from tests.wire.serving import running_server
from traces import read_trace


@pytest.mark.parametrize("api", ["completions", "chat", "responses"])
@pytest.mark.parametrize("model", [(), ("--model", "m")])
def test_the_model_ends_its_outputs(api: str, model: tuple[str, ...], tmp_path: Path) -> None:
    prefix = str(tmp_path / "free")
    with running_server(default_output_tokens=23) as server:
        asked = ["--url", server.url, "--rate", "100", "--num-requests", "3", "--api-format", api, *model]
        assert run(["observe", *asked, "--unconstrained-output", "-o", prefix]) == 0
    rows = read_trace(f"{prefix}.yaml").rows
    assert [(row.status, row.output_tokens) for row in rows] == [("ok", 23)] * 3
