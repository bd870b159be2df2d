"""Look at every page of the site, and at those that commands write or serve, in Chromium with the rules of axe.

    npm install --prefix FOLDER axe-core playwright-core
    python -m workshop.looks FOLDER [--only PART] [--screenshots FOLDER]

Each page is seen in light and dark, in windows of 390, 1280 and 1920 pixels. A line tells what breaks a rule, is wider
than its window, is missing, or is loaded from elsewhere. Exit code 1 if there is any.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blis_sim.testing import server
from workshop.ending import refuse

PROJECT = Path(__file__).parents[2]
MODEL = ("--model", "qwen/qwen3-14b")
SHORT = ("--rate", "10", "--prompt-tokens", "500", "--output-tokens", "50")
WRITTEN: dict[str, tuple[str, ...]] = {
    "page-of-run.html": ("run", *MODEL, *SHORT, "--num-requests", "200"),
    "page-of-sweep.html": ("sweep", *MODEL, *SHORT, "--num-requests", "100", "--vary", "max-num-seqs=4,8,16"),
    "page-of-compare.html": ("compare", "--rate", "10", "--duration", "20", "--", *MODEL, "--", *MODEL, "--tp", "2"),
    "page-of-plan.html": ("plan", *MODEL, *SHORT, "--ttft-p99", "500ms", "--gpus", "H100", "--tp-sizes", "1"),
    "page-of-fleet.html": ("fleet", *MODEL, *SHORT, "--num-requests", "200", "--count", "2", "--kill", "5s"),
}
"""Commands by the page that `--html` makes of each, its name first."""


@contextmanager
def live_page(url: str, folder: Path) -> Iterator[str]:
    """Yield the address of the page on which `blis observe` shows the load that it sends to a server."""
    words = [
        "observe",
        "--url",
        url,
        "--rate",
        "5",
        "--num-requests",
        "100000",
        "--live-html",
        "0",
        "-o",
        f"{folder}/trace",
    ]
    command = [sys.executable, "-m", "blis_sim.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as sending:
        assert sending.stderr is not None
        try:
            yield next(line.split("live at ")[1].strip() for line in sending.stderr if "live at " in line)
        finally:
            sending.kill()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Keep the output clean."""


def written(folder: Path) -> Iterator[str]:
    """Build the site in a folder and write the pages of commands beside it; yield their paths."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(words, cwd=PROJECT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    yield from sorted(page.name for page in folder.glob("*.html"))
    for name, (command, *given) in WRITTEN.items():
        page = ["--html", str(folder / name)]
        words = [sys.executable, "-m", "blis_sim.cli", command, *page, *given]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            refuse(f"looks: {done.stderr.strip()}")
        yield name


def findings(seen: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a page in one window, in words."""
    if seen["overflow"] > 0:
        yield f"{seen['overflow']} pixels wider than its window"
    yield from (f"missing: {each}" for each in seen["broken"])
    yield from (f"loaded from elsewhere: {each}" for each in seen["elsewhere"])
    for rule in seen["violations"]:
        first = rule["nodes"][0]
        yield f"{rule['id']}, {len(rule['nodes'])} times, such as {first['target']}: {first['failureSummary']!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=Path, help="folder in which npm has installed axe-core and playwright-core")
    parser.add_argument("--only", default="", help="pages whose path has this in it")
    parser.add_argument("--screenshots", type=Path, default=None, help="folder that gets a picture of each window")
    given = parser.parse_args()
    browser = shutil.which("chromium")
    if browser is None or not (given.modules / "node_modules" / "axe-core").is_dir():
        refuse(f"looks: needs chromium, and npm install --prefix {given.modules} axe-core playwright-core")
    if given.screenshots is not None:
        given.screenshots.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        pages = list(written(folder))
        files = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)))
        stack.callback(files.shutdown)
        threading.Thread(target=files.serve_forever, daemon=True).start()
        served = stack.enter_context(server("qwen/qwen3-14b", "--num-instances", "2"))
        urls = [f"{served.url}/dashboard", stack.enter_context(live_page(served.url, folder))]
        urls += [f"http://127.0.0.1:{files.server_port}/{page}" for page in pages]
        shots = str(given.screenshots or "")
        script = str(Path(__file__).with_name("look.mjs"))
        words = ["node", script, str(given.modules.resolve()), browser, shots]
        looking = subprocess.Popen(
            [*words, *(url for url in urls if given.only in url)], stdout=subprocess.PIPE, text=True
        )
        assert looking.stdout is not None
        num_windows = num_found = 0
        for line in looking.stdout:
            seen = json.loads(line)
            num_windows += 1
            for found in findings(seen):
                num_found += 1
                page = seen["url"].split("/", 3)[3]
                print(f"{page}, {seen['colorScheme']}, {seen['width']} pixels: {found}", flush=True)
        print(f"{num_windows} windows, {num_found} findings")
        return int(looking.wait() != 0 or num_found > 0 or num_windows == 0)


if __name__ == "__main__":
    sys.exit(main())
