"""Other load generators: how many requests per second they reach on one core, of the same shape."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = "qwen/qwen3-14b"
CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class FinishedClient:
    """A client that has ended: wall and processor time, and what it printed."""

    wall_s: float
    cpu_s: float
    output: str


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second as they came out, and processor seconds that one more request takes."""

    per_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number and lengths of the requests to send."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int


def run_client(command: list[str], environment: Mapping[str, str] | None = None) -> FinishedClient:
    """Run a client, and all processes that it starts, on the second core, if there is one."""
    cores = sorted(os.sched_getaffinity(0))
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
        )
        os.sched_setaffinity(process.pid, {cores[-1]})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{command[0]} has ended with status {status}")
        output.seek(0)
        return FinishedClient(time.monotonic() - began_s, usage.ru_utime + usage.ru_stime, output.read())


def rate_of_vllm(command: str, url: str, tokenizer: str, shape: Shape) -> Rate:
    """Rate of `vllm bench serve`."""
    arguments = [command, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", MODEL]
    arguments += ["--tokenizer", tokenizer, "--dataset-name", "random", "--ignore-eos", "--request-rate", "inf"]
    arguments += ["--random-input-len", str(shape.prompt_tokens), "--random-output-len", str(shape.output_tokens)]
    arguments += ["--max-concurrency", str(CONCURRENCY), "--disable-tqdm", "--num-prompts"]
    few, many = (
        run_client([*arguments, str(shape.num_requests // 8)]),
        run_client([*arguments, str(shape.num_requests)]),
    )
    (line,) = [each for each in many.output.splitlines() if each.startswith("Request throughput")]
    return Rate(float(line.split()[-1]), (many.cpu_s - few.cpu_s) / (shape.num_requests - shape.num_requests // 8))


def rate_of_guidellm(command: str, url: str, tokenizer: str, shape: Shape) -> Rate:
    """Rate of the throughput profile of GuideLLM with one worker; it takes a quarter of the requests."""
    backend = f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions"
    data = f"kind=synthetic_text,prompt_tokens={shape.prompt_tokens},output_tokens={shape.output_tokens}"
    arguments = [command, "run", "--backend", backend, "--data", data, "--disable-progress"]
    arguments += ["--profile", f"kind=throughput,max_concurrency={CONCURRENCY}"]
    arguments += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    one_worker = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    many, few = shape.num_requests // 4, shape.num_requests // 16
    took = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments += ["--output", f"kind=json,path={report}", "--constraint"]
        for count in (few, many):
            took[count] = run_client([*arguments, f"kind=max_requests,count={count}"], one_worker).cpu_s
        (found,) = json.loads(report.read_text())["benchmarks"]
    completed = found["metrics"]["request_totals"]["successful"]
    if completed != many:
        raise SystemExit(f"{command} has completed {completed} of {many} requests")
    return Rate(completed / found["duration"], (took[many] - took[few]) / (many - few))


PEERS: dict[str, Callable[[str, str, str, Shape], Rate]] = {"vllm": rate_of_vllm, "guidellm": rate_of_guidellm}
"""By the name of the command."""
