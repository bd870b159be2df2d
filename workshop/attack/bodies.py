"""Attacks servers with hostile requests, and measures what other clients notice of it.

    python -m workshop.attack.bodies [--count 5000] [--seed 0] [--setups plain,embed] [--url http://HOST:PORT]

The requests are mutations of valid ones, of their JSON text, of HTTP itself and of uploads, which hypothesis draws;
heavy kinds: few bytes that ask for much work; and with --described those that schemathesis makes up from the server's
OpenAPI document. Equal arguments send equal bytes. Without --url a server of `blis` is started for each set-up.
While the requests are sent, a process of its own reads streams and polls /health; quiet times of the same run are
what its figures are compared with. The time that the server's main thread waited for a processor meanwhile is the
machine's load, and is subtracted unless --as-measured is given. The exit code is 1 when a bound is broken, and with
--shrink the smallest request with each error of the server is shown.
"""

import argparse
import itertools
import json
import math
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from workshop.attack import memory
from workshop.attack.generate import described_requests, hostile_requests, small_requests
from workshop.attack.hostile import HostileRequest, Message
from workshop.attack.judging import AttackResult, Bounds, judged, read_errors
from workshop.attack.mutations import Draws
from workshop.attack.samples import read_samples
from workshop.attack.sending import Exchange, exchange
from workshop.attack.setups import SETUPS, Running, Setup, running
from workshop.attack.watcher import watching

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
        self._is_over = threading.Event()
        self.attacked = AttackResult(setup.name)

    def run(self) -> AttackResult:
        """Send all requests that the time limit leaves time for; quiet times are in between."""
        self._measure_quiet()
        if self._server.pid is not None:
            self.attacked.memory_before_mb = memory.anonymous_mb(self._server.pid)
        with ThreadPoolExecutor(self._given.concurrency + 1) as lanes:
            sampling = lanes.submit(self._sample_memory)
            try:
                self._send_all(lanes)
                self._measure_quiet()
            finally:
                self._is_over.set()
            sampling.result()
        return self.attacked

    def _requests(self) -> Iterable[HostileRequest]:
        given = self._given
        found: Iterator[HostileRequest] = hostile_requests(self._setup, given.seed, given.count, given.heavy_rounds)
        if given.described:
            with urllib.request.urlopen(f"http://{self._server.host}:{self._server.port}/openapi.json") as page:
                document = json.load(page)
            found = itertools.chain(found, described_requests(document, self._setup, given.seed, given.described))
        return found

    def _send_all(self, lanes: ThreadPoolExecutor) -> None:
        sending: set[Future[None]] = set()
        for index, request in enumerate(self._requests()):
            if not any(text in request.kind for text in self._given.only.split("|")):
                continue
            if self._must_end(index):
                break
            if sending and (request.runs_alone or time.monotonic() > self._quiet_at_s):
                sending = self._done(sending, all_of_them=True)
            if time.monotonic() > self._quiet_at_s:
                self._measure_quiet()
            sending.add(lanes.submit(self._send, index, request))
            if request.runs_alone or len(sending) >= self._given.concurrency:
                sending = self._done(sending, all_of_them=request.runs_alone)
        self._done(sending, all_of_them=True)

    def _done(self, sending: set[Future[None]], all_of_them: bool) -> set[Future[None]]:
        done, left = wait(sending, return_when="ALL_COMPLETED" if all_of_them else FIRST_COMPLETED)
        for each in done:
            each.result()
        return left

    def _must_end(self, index: int) -> bool:
        """Whether no request from this index on is sent: the server has ended, or the time is over."""
        self.attacked.died = not self._server.is_alive()
        if time.monotonic() > self._ends_at_s:
            self.attacked.num_unsent = max(self._given.count - index, 1)
        return self.attacked.died or self.attacked.num_unsent > 0

    def _call(self, method: str, path: str, patience_s: float) -> Exchange:
        request = Message(method=method, path=path, headers={}).serialised()
        return exchange(self._server.host, self._server.port, [request], patience_s)

    def _settle(self) -> None:
        """Wait until what the attack has left behind is done: the server answers at once several times in a row."""
        deadline_s, num_prompt = min(time.monotonic() + SETTLED_WITHIN_S, self._ends_at_s), 0
        while num_prompt < NUM_PROMPT_ANSWERS and (left_s := deadline_s - time.monotonic()) > 0:
            found = self._call("GET", "/health", left_s)
            num_prompt = num_prompt + 1 if found.ended_s - found.started_s < PROMPT_S else 0
            time.sleep(PROMPT_S)

    def _measure_quiet(self) -> None:
        self._settle()
        started_s = time.monotonic()
        time.sleep(QUIET_S)
        # What the attack left to do in its last moments is no quiet time.
        self.attacked.quiet.append((started_s + QUIET_S / 3, time.monotonic()))
        self._quiet_at_s = time.monotonic() + QUIET_EVERY_S

    def _send(self, index: int, request: HostileRequest) -> None:
        peak_mb = self._peak_mb() if request.runs_alone else 0.0
        found = sent(self._server, request, self._given.patience_s)
        self.attacked.exchanges.append((request, found))
        if request.runs_alone and self._peak_mb() - peak_mb > self._given.memory_mb / 2:
            self.attacked.memory_culprits.append(f"{request.kind} +{self._peak_mb() - peak_mb:.0f} MB")
        if request.disturbs:
            self._recover(found)
            time.sleep(SETTLING_S)
            self.attacked.disturbed.append((found.started_s, time.monotonic()))
        if self._given.replies is not None:
            self._write_reply(index, request, found)

    def _write_reply(self, index: int, request: HostileRequest, found: Exchange) -> None:
        row = {"setup": self._setup.name, "index": index, "kind": request.kind, "route": request.route}
        row |= {"sent": request.shown, "outcome": found.outcome, "status": found.status}
        row |= {"reply": found.reply.decode("utf-8", "replace")}
        with Path(self._given.replies).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "ms": round((found.ended_s - found.started_s) * 1000, 1)}) + "\n")

    def _peak_mb(self) -> float:
        return 0.0 if self._server.pid is None else memory.peak_mb(self._server.pid)

    def _recover(self, found: Exchange) -> None:
        """Undo what a disturbing request may have done."""
        undo = list(RECOVERY)
        added = _NEW_INSTANCE.search(found.reply) if found.status == 201 else None
        if added is not None:
            undo.append(("DELETE", f"/blis/instances/{int(added[1] or added[2])}"))
        for method, path in undo:
            self._call(method, path, 5.0)

    def _sample_memory(self) -> None:
        pid, attacked = self._server.pid, self.attacked
        if pid is None:
            return
        peak_before_mb = memory.peak_mb(pid)
        while not self._is_over.wait(MEMORY_EVERY_S):
            # A peak between two samples is one of the main process, which reads all bodies.
            grown_mb = memory.peak_mb(pid) - peak_before_mb
            now_mb = max(memory.anonymous_mb(pid), attacked.memory_before_mb + grown_mb)
            attacked.memory_worst_mb = max(attacked.memory_worst_mb, now_mb)


def sent(server: Running, request: HostileRequest, patience_s: float) -> Exchange:
    """Send a request. A reply that does not wait for tokens is waited for four times as long."""
    patience_s = patience_s if request.may_generate else 4 * patience_s
    return exchange(server.host, server.port, request.pieces, patience_s, request.is_complete)


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


def bounds_of(given: argparse.Namespace, setup: Setup) -> Bounds:
    """The bounds that the command line sets; streams have none where the engine makes them wait by its rules."""
    bounds = Bounds.of(given)
    return bounds if setup.shares_steps else replace(bounds, gap_p99_ms=math.inf, gap_worst_ms=math.inf)


def attack(setup: Setup, server: Running, given: argparse.Namespace) -> list[str]:
    """Attack one server, print what happened, and return the broken bounds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.txt"
        with watching(server, file, setup.generates, setup.api_key):
            attacked = Attack(setup, server, given).run()
        attacked.left_behind = 0.0 if attacked.died else requests_left(server)
        attacked.errors = read_errors(server.errors)
        verdict = judged(attacked, read_samples(file, given.as_measured), bounds_of(given, setup))
    print(f"{setup.name}, seed {given.seed}: {len(attacked.exchanges):,} requests")
    print("\n".join(verdict.lines))
    print("\n".join(f"  BROKEN {line}" if line[0] != " " else line for line in verdict.broken), flush=True)
    if given.shrink and not attacked.died:
        shrink(setup, server, given, attacked)
    return verdict.broken


def shrink(setup: Setup, server: Running, given: argparse.Namespace, attacked: AttackResult) -> None:
    """Show the smallest request that is answered as each unexpected error was, found by sending it again and again."""

    def error_of(found: Exchange) -> bytes:
        return re.sub(rb"[\d']+", b"_", found.reply)

    def has_error(error: bytes, request: HostileRequest) -> bool:
        return error_of(sent(server, request, given.patience_s)) == error

    names = {error_of(found): request.name for request, found in attacked.unexpected_errors() if request.name}
    draws = Draws(small_requests(setup))
    for reply, name in names.items():
        request = draws.smallest(name, partial(has_error, reply))
        if request is not None:
            print(f"  smallest with {reply[:100]!r}: {b''.join(request.pieces)[:500]!r}", flush=True)


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
        "--described",
        type=int,
        default=0,
        metavar="N",
        help="also send N requests of each operation made from its schema",
    )
    parser.add_argument("--only", default="", help="send only kinds with this text, or one of several separated by |")
    parser.add_argument("--concurrency", type=int, default=4, help="requests in flight, but for those that run alone")
    parser.add_argument("--patience-s", type=float, default=5.0, help="how long a generated reply is read")
    parser.add_argument("--time-limit-s", type=float, default=600.0, help="send no more to a set-up after this time")
    parser.add_argument("--shrink", action="store_true", help="show the smallest request with each unexpected error")
    parser.add_argument("--as-measured", action="store_true", help="count waits for a processor as the server's, too")
    parser.add_argument("--replies", help="append what was sent and answered to this file, as JSON lines")
    Bounds.add_to(parser)
    return parser.parse_args()


def main() -> None:
    """Attack each set-up in turn."""
    given = parsed()
    by_name = {each.name: each for each in SETUPS}
    names = list(by_name) if given.setups == "all" else given.setups.split(",")
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"--setups: {unknown[0]!r} is none of {', '.join(by_name)}")
    broken: list[str] = []
    for name in itertools.islice(names, 1 if given.url else None):
        if given.url:
            parts = urlsplit(given.url)
            broken += attack(by_name[name], Running(parts.hostname or "127.0.0.1", parts.port or 80), given)
        else:
            with running(by_name[name]) as server:
                broken += attack(by_name[name], server, given)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
