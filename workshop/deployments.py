"""Serves deployments that people run, observes each for a minute, replays the recording and grades the replay.

    python -m workshop.deployments [--seconds 60] [--rate 4] [NAME ...]

Runs the commands that a user would type. Prints a row for each deployment: the mean error of a request's TTFT, E2E and
time between tokens, the least correlation, grades. The exit code is 1 when a grade is not excellent. The benchmark
needs no GPU and no network; a busy computer makes the served times late.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLIS = [sys.executable, "-m", "blis_sim.cli"]
DEPLOYMENTS: Mapping[str, Sequence[str]] = {
    "gpt-oss-120b": ("openai/gpt-oss-120b", "--hardware", "H200", "--tp", "2"),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", "--hardware", "H200", "--tp", "8", "--enable-expert-parallel"),
    "llama-3.3-70b-fp8": (
        "meta-llama/Llama-3.3-70B-Instruct",
        "--hardware",
        "H100",
        "--tp",
        "4",
        "--quantization",
        "fp8",
    ),
    "qwen3.5-122b": ("Qwen/Qwen3.5-122B-A10B", "--hardware", "H100", "--tp", "4"),
}
LENGTHS = (
    *("--prompt-tokens", "2000", "--prompt-tokens-stdev", "1500", "--prompt-tokens-max", "8000"),
    *("--output-tokens-stdev", "64"),
)
"""Prompts of many lengths: with like ones, the chance that two meet in a step decides how they differ."""
EXCELLENT = "excellent"


def main() -> int:
    """Grade each deployment asked for and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DEPLOYMENTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is observed")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--output", type=Path, default=None, help="folder to keep the files in")
    parser.add_argument("--any-grade", action="store_true", help="print grades that are not excellent, without failing")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in DEPLOYMENTS]
    if unknown:
        parser.error(f"unknown deployment {unknown[0]!r}, known are {', '.join(DEPLOYMENTS)}")
    print(f"{'deployment':<20}{'KV blocks':>11}{'TTFT':>9}{'E2E':>9}{'ITL':>9}{'Pearson r':>11}  grades", flush=True)
    is_excellent = True
    for name in arguments.names or DEPLOYMENTS:
        with tempfile.TemporaryDirectory(prefix="blis-deployment-") as temporary:
            folder = (arguments.output or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            is_excellent &= _graded(name, folder, arguments.rate, arguments.seconds)
    return 0 if is_excellent or arguments.any_grade else 1


def _graded(name: str, folder: Path, rate: float, seconds: float) -> bool:
    model, *engine = DEPLOYMENTS[name]
    blocks = _observe(model, engine, folder, rate, seconds)
    header, results, report = (str(folder / file) for file in ("trace.yaml", "results.json", "report.json"))
    _run(["replay", header, "--model", model, *engine, "--results-path", results, "--json"], folder / "metrics.json")
    itl = ["--itl-data", str(folder / "trace.itl.csv")]
    _run(["calibrate", header, "--sim-results", results, *itl, "--report", report], folder / "calibration.txt")
    figures: Mapping[str, Any] = json.loads(Path(report).read_text())
    return _shown(name, blocks, figures)


def _shown(name: str, blocks: int, report: Mapping[str, Any]) -> bool:
    metrics = {each: report["metrics"][each]["request_level"] for each in ("ttft", "e2e", "itl")}
    errors = "".join(f"{metric['mape']:>9.2%}" for metric in metrics.values())
    grades = {each: metric["quality"] for each, metric in metrics.items()}
    correlation = min(metrics[each]["pearson_r"] for each in ("ttft", "e2e"))
    said = ", ".join(f"{each} {grade}" for each, grade in grades.items())
    print(f"{name:<20}{blocks:>11,}{errors}{correlation:>11.4f}  {said}", flush=True)
    return set(grades.values()) == {EXCELLENT}


def _observe(model: str, engine: Sequence[str], folder: Path, rate: float, seconds: float) -> int:
    """Record a served deployment and return its KV blocks."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*BLIS, "serve", model, *engine, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log
        )
        try:
            _wait_until_healthy(url, server)
            load = ["--rate", str(rate), "--num-requests", str(int(rate * seconds)), "--arrival", "poisson"]
            where = ["observe", "--url", url, "--model", model, "-o", str(folder / "trace"), "--record-itl"]
            _run([*where, *load, *LENGTHS], folder / "observed.txt")
            return _kv_blocks(url)
        finally:
            server.terminate()
            server.wait(timeout=20)


def _run(arguments: Sequence[str], output: Path) -> None:
    with output.open("w") as file:
        subprocess.run([*BLIS, *arguments], stdout=file, check=True)


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start within a minute")


def _kv_blocks(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        page = str(reply.read(), "utf-8")
    line = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info"))
    return int(line.split('num_gpu_blocks="')[1].split('"')[0])


if __name__ == "__main__":
    sys.exit(main())
