"""Attacks servers with hostile requests, and measures what other clients notice of it.

    python workshop/attack/bodies.py [--count 5000] [--seed 0] [--setups plain,embed] [--url http://HOST:PORT]

The requests are mutations of valid ones, of their JSON text, of HTTP itself and of uploads, and heavy kinds: few bytes
that ask for much work. Equal arguments send equal bytes. Without --url a server of `blis` is started for each set-up.
While the requests are sent, a process of its own reads streams and polls /health; quiet times of the same run are
what its figures are compared with. The time that the server's main thread waited for a processor meanwhile is the
machine's load, and is subtracted unless --as-measured is given. The exit code is 1 when a bound is broken.

With --table each heavy kind and each costly constraint is sent by itself, and a row for each has its effect on other
clients: by how much the gaps of streams grew, in milliseconds over the quiet times, how long /health took, and by how
many megabytes memory grew. A star marks what is over its bound.
"""

import argparse
import asyncio
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from workshop.attack import memory
from workshop.attack.generate import hostile_requests
from workshop.attack.hostile import HostileRequest, Message
from workshop.attack.judging import AttackResult, Bounds, judged, read_errors
from workshop.attack.kinds import Measurement, rows
from workshop.attack.samples import read_samples
from workshop.attack.sending import Exchange, exchange
from workshop.attack.setups import SETUPS, Running, Setup, running

QUIET_S = 3.0
QUIET_EVERY_S = 30.0
SETTLED_WITHIN_S = 60.0
NUM_PROMPT_ANSWERS = 5
PROMPT_S = 0.1
MEMORY_EVERY_S = 0.2
SETTLING_S = 0.05
"""Seconds during which streams may still show a disturbing request after it is undone: a few steps. One request in four
disturbs in the set-up `dev`, so each tenth of a second here is two minutes of its attack."""
DRAINED_WITHIN_S = 20.0
RECOVERY = (("POST", "/resume"), ("POST", "/wake_up"), ("DELETE", "/blis/faults"))
_NEW_INSTANCE = re.compile(rb'"instance":(\d+)|"number":(\d+)')


class Attack:
    """One attack on one server."""

    def __init__(self, setup: Setup, server: Running, given: argparse.Namespace) -> None:
        self._setup = setup
        self._server = server
        self._given = given
        self._quiet_at_s = 0.0
        self._ends_at_s = time.monotonic() + given.time_limit_s
        self.attacked = AttackResult(setup.name)

    async def run(self) -> AttackResult:
        """Send all requests that the time limit leaves time for; quiet times are in between."""
        attacked, server, given = self.attacked, self._server, self._given
        await self._measure_quiet()
        if server.pid is not None:
            attacked.memory_before_mb = memory.anonymous_mb(server.pid)
        sampling = asyncio.create_task(self._sample_memory())
        tasks: set[asyncio.Task[None]] = set()
        requests = enumerate(hostile_requests(self._setup, given.seed, given.count, given.heavy_rounds))
        for index, request in requests:
            if not any(text in request.kind for text in given.only.split("|")):
                continue
            if self._must_end(index):
                break
            if tasks and (request.runs_alone or time.monotonic() > self._quiet_at_s):
                await asyncio.wait(tasks)
            if time.monotonic() > self._quiet_at_s:
                await self._measure_quiet()
            task = asyncio.create_task(self._send(index, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if request.runs_alone:
                await task
            elif len(tasks) >= given.concurrency:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks:
            await asyncio.wait(tasks)
        await self._measure_quiet()
        sampling.cancel()
        return attacked

    def _must_end(self, index: int) -> bool:
        """Whether no request from this index on is sent: the server has ended, or the time is over."""
        self.attacked.died = not self._server.is_alive()
        if time.monotonic() > self._ends_at_s:
            self.attacked.num_unsent = self._given.count - index
        return self.attacked.died or self.attacked.num_unsent > 0

    async def _settle(self) -> None:
        """Wait until what the attack has left behind is done: the server answers at once several times in a row."""
        request = Message(method="GET", path="/health", headers={}).serialised()
        deadline_s, num_prompt = min(time.monotonic() + SETTLED_WITHIN_S, self._ends_at_s), 0
        while num_prompt < NUM_PROMPT_ANSWERS and (left_s := deadline_s - time.monotonic()) > 0:
            found = await exchange(self._server.host, self._server.port, [request], left_s)
            num_prompt = num_prompt + 1 if found.ended_s - found.started_s < PROMPT_S else 0
            await asyncio.sleep(PROMPT_S)

    async def _measure_quiet(self) -> None:
        await self._settle()
        started_s = time.monotonic()
        await asyncio.sleep(QUIET_S)
        # What the attack left to do in its last moments is no quiet time.
        self.attacked.quiet.append((started_s + QUIET_S / 3, time.monotonic()))
        self._quiet_at_s = time.monotonic() + QUIET_EVERY_S

    async def _send(self, index: int, request: HostileRequest) -> None:
        server, patience_s = self._server, self._given.patience_s
        peak_mb = self._peak_mb() if request.runs_alone else 0.0
        sends_head = request.pieces[0].startswith(b"HEAD ")
        found = await exchange(
            server.host, server.port, request.pieces, patience_s if request.may_generate else 4 * patience_s,
            request.is_complete, sends_head,
        )  # fmt: skip
        self.attacked.exchanges.append((request, found))
        if request.runs_alone and self._peak_mb() - peak_mb > self._given.memory_mb / 2:
            self.attacked.memory_culprits.append(f"{request.kind} +{self._peak_mb() - peak_mb:.0f} MB")
        if request.disturbs:
            await self._recover(found)
            await asyncio.sleep(SETTLING_S)
            self.attacked.disturbed.append((found.started_s, time.monotonic()))
        if self._given.replies is not None:
            self._write_reply(index, request, found)

    def _write_reply(self, index: int, request: HostileRequest, found: Exchange) -> None:
        row: dict[str, object] = {
            "setup": self._setup.name,
            "index": index,
            "kind": request.kind,
            "route": request.route,
            "sent": request.shown,
        }
        row |= {"outcome": found.outcome, "status": found.status, "reply": found.reply.decode("utf-8", "replace")}
        with Path(self._given.replies).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "ms": round((found.ended_s - found.started_s) * 1000, 1)}) + "\n")

    def _peak_mb(self) -> float:
        return 0.0 if self._server.pid is None else memory.peak_mb(self._server.pid)

    async def _recover(self, found: Exchange) -> None:
        """Undo what a disturbing request may have done."""
        undo = list(RECOVERY)
        added = _NEW_INSTANCE.search(found.reply) if found.status == 201 else None
        if added is not None:
            undo.append(("DELETE", f"/blis/instances/{int(added[1] or added[2])}"))
        for method, path in undo:
            message = Message(method=method, path=path, headers={})
            with suppress(OSError):
                await exchange(self._server.host, self._server.port, [message.serialised()], 5.0)

    async def _sample_memory(self) -> None:
        pid, attacked = self._server.pid, self.attacked
        if pid is None:
            return
        peak_before_mb = memory.peak_mb(pid)
        while True:
            # A peak between two samples is one of the main process, which reads all bodies.
            grown_mb = memory.peak_mb(pid) - peak_before_mb
            now_mb = max(memory.anonymous_mb(pid), attacked.memory_before_mb + grown_mb)
            attacked.memory_worst_mb = max(attacked.memory_worst_mb, now_mb)
            await asyncio.sleep(MEMORY_EVERY_S)


@contextmanager
def watching(setup: Setup, server: Running, file: Path) -> Iterator[None]:
    """The watcher, in a process of its own."""
    command = [sys.executable, "-m", "workshop.attack.watcher", server.host, str(server.port), str(file)]
    command += [] if setup.generates else ["--no-streams"]
    command += [] if setup.api_key is None else ["--api-key", setup.api_key]
    command += [] if server.pid is None else ["--pid", str(server.pid)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def requests_left(server: Running) -> float:
    """Requests in the engines once the attack is over; 0 as soon as there are none."""
    deadline_s = time.monotonic() + DRAINED_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics", timeout=10) as page:
                text = page.read().decode()
        except OSError:
            return 0.0
        names = r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)$"
        left = sum(float(each) for each in re.findall(names, text, re.MULTILINE))
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.2)


def measure_kinds(setup: Setup, server: Running, given: argparse.Namespace) -> list[str]:
    """Send each kind by itself, print the table, and return the broken bounds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.txt"
        found = Measurement(setup, server, given)
        with watching(setup, server, file):
            asyncio.run(found.run())
        lines, broken = rows(found, file, bounds_of(given, setup), given.as_measured)
    tracebacks = read_errors(server.errors).count("Traceback ")
    print(f"{setup.name}: {len(found.sent)} kinds, {given.times} times each, {tracebacks} tracebacks")
    print("\n".join(lines), flush=True)
    return broken + [f"{tracebacks} tracebacks"] * bool(tracebacks)


def bounds_of(given: argparse.Namespace, setup: Setup) -> Bounds:
    """The bounds that the command line sets; streams have none where the engine makes them wait by its rules."""
    bounds = Bounds(given.gap_p99_ms, given.gap_worst_ms, given.health_ms, given.memory_mb)
    return bounds if setup.shares_steps else replace(bounds, gap_p99_ms=math.inf, gap_worst_ms=math.inf)


def attack(setup: Setup, server: Running, given: argparse.Namespace) -> list[str]:
    """Attack one server, print what happened, and return the broken bounds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.txt"
        with watching(setup, server, file):
            attacked = asyncio.run(Attack(setup, server, given).run())
        attacked.left_behind = 0.0 if attacked.died else requests_left(server)
        attacked.errors = read_errors(server.errors)
        verdict = judged(attacked, read_samples(file, given.as_measured), bounds_of(given, setup))
    print(f"{setup.name}, seed {given.seed}: {len(attacked.exchanges):,} requests")
    print("\n".join(verdict.lines))
    print("\n".join(f"  BROKEN {line}" if line[0] != " " else line for line in verdict.broken), flush=True)
    return verdict.broken


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="hostile requests for each set-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setups", default="all", help=f"of {', '.join(each.name for each in SETUPS)}")
    parser.add_argument(
        "--url", help="attack this running server as the first of --setups; without tracebacks and memory"
    )
    parser.add_argument("--heavy-rounds", type=int, default=1, help="how often each heavy kind is sent; 0 for never")
    parser.add_argument(
        "--only", default="", help="send only kinds with this text in their name, or one of several, separated by |"
    )
    parser.add_argument("--concurrency", type=int, default=4, help="requests in flight, but for those that run alone")
    parser.add_argument("--patience-s", type=float, default=5.0, help="how long a generated reply is read")
    parser.add_argument(
        "--time-limit-s", type=float, default=600.0, help="send nothing more to a set-up after this time"
    )
    parser.add_argument("--table", action="store_true", help="a row for each heavy kind and each costly constraint")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="with --table the I-th of N parts of the kinds")
    parser.add_argument("--times", type=int, default=2, help="with --table how often each kind is sent")
    parser.add_argument("--quiet-s", type=float, default=1.5, help="with --table the pause before each kind")
    parser.add_argument("--as-measured", action="store_true", help="count waits for a processor as the server's, too")
    parser.add_argument("--replies", help="append what was sent and answered to this file, as JSON lines")
    for name, default in (("gap-p99-ms", 50), ("gap-worst-ms", 100), ("health-ms", 100), ("memory-mb", 200)):
        parser.add_argument(f"--{name}", type=float, default=float(default), help="bound of the growth")
    return parser.parse_args()


def main() -> None:
    """Attack each set-up in turn."""
    given = parsed()
    by_name = {each.name: each for each in SETUPS}
    names = list(by_name) if given.setups == "all" else given.setups.split(",")
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"--setups: {unknown[0]!r} is none of {', '.join(by_name)}")
    broken: list[str] = []
    work = measure_kinds if given.table else attack
    for name in itertools.islice(names, 1 if given.url else None):
        if given.url:
            parts = urlsplit(given.url)
            broken += work(by_name[name], Running(parts.hostname or "127.0.0.1", parts.port or 80), given)
        else:
            with running(by_name[name]) as server:
                broken += work(by_name[name], server, given)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
