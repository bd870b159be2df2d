"""A sample of the attack with hostile bodies: no server fails, disconnects or logs a traceback in any set-up."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from workshop.attack import bodies
from workshop.attack.generate import hostile_requests
from workshop.attack.hostile import HostileRequest
from workshop.attack.judging import AttackResult, Bounds, judged
from workshop.attack.samples import doing, read_samples
from workshop.attack.sending import Exchange, exchange
from workshop.attack.setups import SETUPS, Running, Setup, running
from workshop.attack.watcher import RAN, Watcher

NUM_REQUESTS = 120
NUM_LANES = 6
PATIENCE_S = 20.0


def attacked(setup: Setup, server: Running, seed: int) -> AttackResult:
    """Return the exchanges of one seed's requests that leave the server as it was."""
    requests = (each for each in hostile_requests(setup, seed, NUM_REQUESTS, heavy_rounds=0) if not each.disturbs)
    found = AttackResult(setup.name)

    def send(request: HostileRequest) -> tuple[HostileRequest, Exchange]:
        patience_s = 1.0 if request.may_generate else PATIENCE_S
        return request, exchange(server.host, server.port, request.pieces, patience_s, request.is_complete)

    with ThreadPoolExecutor(NUM_LANES) as lanes:
        found.exchanges += lanes.map(send, requests)
    assert server.errors is not None
    found.errors = server.errors.read_text(errors="replace")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=[each.name for each in SETUPS])
def test_survives_hostile_requests(setup: Setup) -> None:
    with running(setup) as server:
        found = attacked(setup, server, seed=0)
        assert server.is_alive()
    assert found.unexpected_errors() == []
    assert found.closed() == []
    assert found.hangs() == []
    assert found.tracebacks() == []
    assert {200, 400} <= {each.status for _, each in found.exchanges}


def test_equal_seeds_make_equal_requests() -> None:
    for setup in (SETUPS[0], SETUPS[-1]):
        first, again = (list(hostile_requests(setup, 3, 15, heavy_rounds=0)) for _ in range(2))
        assert first == again
        assert first != list(hostile_requests(setup, 4, 15, heavy_rounds=0))


def test_ends_at_its_time_limit_where_a_server_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "QUIET_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("sys.argv", ["bodies.py", "--time-limit-s", "1", "--patience-s", "0.1"])
        server = Running("127.0.0.1", silent.getsockname()[1])
        began_s = time.monotonic()
        found = bodies.Attack(SETUPS[0], server, bodies.parsed()).run()
    assert time.monotonic() - began_s < 20
    assert found.num_unsent == 5000 - len(found.exchanges)
    verdict = judged(found, {}, Bounds())
    assert f"{found.num_unsent:,} requests were not sent before the time limit" in verdict.broken


@pytest.mark.slow
def test_a_report_names_what_the_main_thread_did_while_a_client_waited(tmp_path: Path) -> None:
    program = "import time\nuntil = time.monotonic() + 2\nwhile time.monotonic() < until: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program]) as process, (tmp_path / "samples").open("w") as file:
        watcher = Watcher("127.0.0.1", 9, file, None, process.pid)

        async def watch() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await watcher.watch_itself()

        asyncio.run(watch())
        process.kill()
    samples = read_samples(tmp_path / "samples", as_measured=False)
    begin_s, end_s = samples[RAN][0].at_s, samples[RAN][-1].at_s
    early = re.match(r"the main thread ran (\d+), waited (\d+) for a processor", doing(samples, (begin_s, end_s - 4)))
    late = re.match(r"the main thread ran (\d+), waited (\d+) for a processor", doing(samples, (end_s - 1, end_s)))
    assert early is not None
    assert late is not None
    assert int(early[1]) + int(early[2]) > 500
    assert int(late[1]) < 100
    assert doing({}, (begin_s, end_s)) == ""
