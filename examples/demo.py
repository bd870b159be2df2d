"""The main job in one go: serve a model that is not there, put load on it, replay the recording, grade the replay.

Runs the same commands a user would type and prints them. Takes about a minute; needs no GPU and no network.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

MODEL = "qwen/qwen3-14b"
ENGINE = ["--hardware", "H100", "--tp", "1"]
BLIS = [sys.executable, "-m", "blis_sim.cli"]


def main() -> int:
    """Run the loop and return the exit code of its last step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--output", type=Path, default=None, help="folder to keep the files in")
    parser.add_argument("--num-instances", type=int, default=1, help="with several, a weighted router is in front")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blis-demo-") as temporary:
        folder = arguments.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return _loop(folder, arguments.num_requests, arguments.rate, arguments.num_instances)


def _loop(folder: Path, num_requests: int, rate: float, num_instances: int) -> int:
    simulated, prompts = ENGINE, ["--prompt-tokens-stdev", "256"]
    if num_instances > 1:
        simulated = [*ENGINE, "--num-instances", str(num_instances), "--routing-policy", "weighted"]
        prompts = ["--prompt-tokens", "6000", "--prompt-tokens-stdev", "4000"]  # so that the load of instances matters
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    serve = ["serve", MODEL, *simulated, "--host", "127.0.0.1", "--port", str(port)]
    _show(serve)
    server = subprocess.Popen([*BLIS, *serve])
    try:
        _wait_until_healthy(url, server)
        load = ["--rate", str(rate), "--num-requests", str(num_requests), "--arrival", "poisson"]
        lengths = [*prompts, "--output-tokens", "128", "--output-tokens-stdev", "64", "--record-itl"]
        observed = folder / "observed.json"
        with observed.open("w") as summary:
            _run(["observe", "--url", url, "--model", MODEL, *load, *lengths, "-o", str(folder / "trace")], summary)
    finally:
        server.terminate()
        server.wait(timeout=20)
    header, results = str(folder / "trace.yaml"), str(folder / "results.json")
    with (folder / "metrics.json").open("w") as metrics:
        _run(["replay", header, "--model", MODEL, *simulated, "--results-path", results, "--json"], metrics)
    itl = ["--itl-data", str(folder / "trace.itl.csv")]
    return _run(["calibrate", header, "--sim-results", results, *itl, "--report", str(folder / "report.json")])


def _run(arguments: list[str], stdout: object = None) -> int:
    _show(arguments)
    return subprocess.run([*BLIS, *arguments], check=True, stdout=stdout).returncode  # type: ignore[call-overload, no-any-return]


def _show(arguments: list[str]) -> None:
    print(f"\n$ blis {' '.join(arguments)}", flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server did not become healthy at {url}")


if __name__ == "__main__":
    sys.exit(main())
