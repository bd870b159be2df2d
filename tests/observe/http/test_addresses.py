"""The addresses of a host, resolved without the threads of the event loop."""

import asyncio
import socket
import subprocess
import sys
import threading
import time

import pytest

from observe.client import addresses_of
from tests.patience import PATIENCE_S


async def test_an_address_is_taken_as_it_is() -> None:
    assert list(await addresses_of("127.0.0.1", 80)) == [("127.0.0.1", 80)]
    assert list(await addresses_of("::1", 80)) == [("::1", 80)]


async def test_a_name_has_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def resolve(host: bytes, port: int, **hints: int) -> object:
        if hints["flags"]:
            return known(host, port, **hints)
        return [(2, 1, 6, "", ("10.0.0.1", port)), (10, 1, 6, "", ("fe80::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert list(await addresses_of("two.example", 80)) == [("10.0.0.1", 80), ("fe80::1", 80)]


@pytest.mark.parametrize("host", ["x.invalid", "a" * 70 + ".invalid", "ü" * 70, "b..ü"])
async def test_a_name_without_addresses_is_an_error_of_the_system(host: str) -> None:
    with pytest.raises(OSError, match=r"not known|[Nn]ame resolution|No address"):
        await addresses_of(host, 80)


async def test_a_system_without_threads_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(MemoryError):
        await addresses_of("x.invalid", 80)


SILENT = """
import asyncio, socket, time
from observe.client import addresses_of

known = socket.getaddrinfo

def resolve(host, port, **hints):
    return known(host, port, **hints) if hints["flags"] else time.sleep({patience_s})

socket.getaddrinfo = resolve

async def main():
    async with asyncio.timeout(0.2):
        await addresses_of("x.invalid", 80)

try:
    asyncio.run(main())
except TimeoutError:
    print("timed out")
"""


def test_a_program_does_not_wait_for_a_silent_name_server() -> None:
    began_s = time.monotonic()
    program = SILENT.format(patience_s=PATIENCE_S)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("timed out\n", "")
    assert time.monotonic() - began_s < PATIENCE_S


THREADS = """
import asyncio, threading
from pathlib import Path
from observe.client import Client
from observe.event_loop import run_loop
from observe.http import parse_server

async def main():
    client = Client(parse_server("http://localhost:{port}"), timeout_s=30, num_spare=1)
    await client.open()
    await client.close()
    print(*(each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")))

run_loop(main())
"""


async def test_a_connection_to_a_name_starts_no_threads_of_the_event_loop() -> None:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        program = THREADS.format(port=server.sockets[0].getsockname()[1])
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        content, _ = await process.communicate()
    assert process.returncode == 0
    assert b"libuv" not in content
