"""`vllm bench serve`, vLLM's own load-tester, where a vLLM is installed; it needs no GPU for this.

`BLIS_VLLM` names the program when it is not on the path.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.wire.serving import running_server

NUM_PROMPTS = 8
OUTPUT_TOKENS = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def bench(program: str, folder: Path, url: str, *options: str) -> Any:
    """Run it and read its result."""
    known = f"--model m --dataset-name random --num-prompts {NUM_PROMPTS} --request-rate 20"
    command = [program, "bench", "serve", *known.split(), "--base-url", url, "--save-result", "--save-detailed"]
    command += ["--random-input-len", "50", "--random-output-len", str(OUTPUT_TOKENS), *options]
    command += ["--result-dir", str(folder), "--result-filename", "result.json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


@pytest.fixture
def program() -> str:
    found = os.environ.get("BLIS_VLLM") or shutil.which("vllm")
    if not found:
        pytest.skip("vllm is not installed; BLIS_VLLM names its program")
    return found


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_measures_every_request_and_token(
    program: str, shared: Path, tmp_path: Path, backend: str, endpoint: str
) -> None:
    tokenizer = str(shared / "oracle/model")
    with running_server(model=tokenizer, tokenizer=tokenizer, speed=1.0) as server:
        options = ("--backend", backend, "--endpoint", endpoint, "--tokenizer", tokenizer)
        result = bench(program, tmp_path, server.url, *options)
    assert (result["completed"], result["failed"]) == (NUM_PROMPTS, 0)
    assert result["output_lens"] == [OUTPUT_TOKENS] * NUM_PROMPTS
    assert [len(gaps) for gaps in result["itls"]] == [OUTPUT_TOKENS - 1] * NUM_PROMPTS
    assert all(ttft > 0 for ttft in result["ttfts"])
