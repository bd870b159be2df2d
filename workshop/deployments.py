"""Serves deployments that people run, observes each for a minute, replays the recording and grades the replay.

    python -m workshop.deployments [--seconds 60] [--rate 4] [NAME ...]

Prints a row for each deployment: the mean error of a request's TTFT, E2E and time between tokens, the least
correlation, grades. The exit code is 1 when a grade is not excellent. The benchmark needs no GPU and no network; a busy
computer makes the served times late.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import blis_sim
from blis_sim.testing import server

DEPLOYMENTS: Mapping[str, str] = {
    "gpt-oss-120b": "openai/gpt-oss-120b --hardware H200 --tp 2",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3 --hardware H200 --tp 8 --enable-expert-parallel",
    "llama-3.3-70b-fp8": "meta-llama/Llama-3.3-70B-Instruct --hardware H100 --tp 4 --quantization fp8",
    "qwen3.5-122b": "Qwen/Qwen3.5-122B-A10B --hardware H100 --tp 4",
}
LENGTHS = "--prompt-tokens 2000 --prompt-tokens-stdev 1500 --prompt-tokens-max 8000 --output-tokens-stdev 64"
"""Prompts of many lengths: with like ones, the chance that two meet in a step decides how they differ."""
EXCELLENT = "excellent"


def main() -> int:
    """Grade each deployment asked for and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DEPLOYMENTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is observed")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--output", type=Path, default=None, help="folder to keep the recordings in")
    parser.add_argument("--any-grade", action="store_true", help="print grades that are not excellent, without failing")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in DEPLOYMENTS]:
        parser.error(f"unknown deployment {unknown[0]!r}, known are {', '.join(DEPLOYMENTS)}")
    print(f"{'deployment':<20}{'KV blocks':>11}{'TTFT':>9}{'E2E':>9}{'ITL':>9}{'Pearson r':>11}  grades", flush=True)
    load = f"--rate {given.rate} --num-requests {int(given.rate * given.seconds)} --arrival poisson {LENGTHS}".split()
    is_excellent = True
    with tempfile.TemporaryDirectory(prefix="blis-deployment-") as temporary:
        for name in given.names or DEPLOYMENTS:
            folder = (given.output or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            is_excellent &= _graded(name, folder, load)
    return 0 if is_excellent or given.any_grade else 1


def _graded(name: str, folder: Path, load: Sequence[str]) -> bool:
    """Print the row of a deployment. Returns whether all grades are excellent."""
    model, *engine = DEPLOYMENTS[name].split()
    with server(model, *engine) as running:
        where = ["observe", "--url", running.url, "--model", model, "-o", str(folder / "trace"), "--record-itl"]
        subprocess.run([sys.executable, "-m", "blis_sim.cli", *where, *load], stdout=subprocess.DEVNULL, check=True)
    with redirect_stderr(StringIO()) as notes:
        metrics = blis_sim.calibrate(folder / "trace.yaml").metrics
    taken = re.search(r"--num-gpu-blocks-override (\d+)", notes.getvalue())
    blocks = int(taken[1]) if taken else 0
    errors = "".join(f"{metrics[each].mape:>9.2%}" for each in ("ttft", "e2e", "itl"))
    correlation = min(metrics[each].pearson_r or 0.0 for each in ("ttft", "e2e"))
    said = ", ".join(f"{each} {metrics[each].grade}" for each in metrics)
    print(f"{name:<20}{blocks:>11,}{errors}{correlation:>11.4f}  {said}", flush=True)
    return {each.grade for each in metrics.values()} == {EXCELLENT}


if __name__ == "__main__":
    sys.exit(main())
