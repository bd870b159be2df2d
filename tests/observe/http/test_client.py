import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from observe.client import Client, Outcome
from observe.errors import RunError
from observe.http import get_bytes, parse_server
from tests.patience import PATIENCE_S
from tests.ports import reserved_port

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking_to(handler: Handler, *, timeout_s: float = PATIENCE_S, num_spare: int = 1) -> AsyncIterator[Client]:
    """A client of a server that runs `handler` on each connection, and then closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = Client(parse_server(f"http://127.0.0.1:{port}"), timeout_s=timeout_s, num_spare=num_spare)
        try:
            yield client
        finally:
            await client.close()


async def ask(client: Client, *, timeout_s: float = PATIENCE_S) -> Outcome:
    return await client.fetch(get_bytes(client.server, "/", {}), timeout_s=timeout_s)


async def stream(client: Client) -> Outcome:
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    client.send(get_bytes(client.server, "/", {}), streaming=True, finished=outcome.set_result)
    return await outcome


async def test_a_connection_is_used_again() -> None:
    connections = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)

    async with talking_to(handler) as client:
        await client.open()
        for _ in range(3):
            assert (await ask(client)).status == "ok"
    assert len(connections) == 1


async def test_a_request_that_meets_a_closing_idle_connection_is_sent_again() -> None:
    heard = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        if len(heard) == 1:
            # A second request gets a closed connection instead of an answer.
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            return
        await reader.read()

    async with talking_to(handler, num_spare=0) as client:
        assert (await ask(client)).status == "ok"
        again = await ask(client)
        assert (again.status, len(heard)) == ("ok", 3)


async def test_a_new_connection_that_closes_without_an_answer_is_an_error() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with talking_to(handler) as client:
        outcome = await ask(client)
        assert (outcome.status, outcome.kind) == ("error", "connection")
        assert outcome.error_message == "HTTP error: connection closed before the answer was complete"


async def test_a_stream_that_breaks_keeps_the_chunks_that_came() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b'e\r\ndata: {"a":1}\n\r\n')
        await writer.drain()

    async with talking_to(handler) as client:
        outcome = await stream(client)
        assert (outcome.status, outcome.kind, outcome.num_chunks) == ("error", "stream", 1)
        assert outcome.error_message.startswith("streaming error: ")


async def test_a_stream_is_complete_with_done_even_if_the_connection_breaks() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"d\r\ndata: [DONE]\n\r\n")
        await writer.drain()

    async with talking_to(handler) as client:
        assert (await stream(client)).status == "ok"


async def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with talking_to(handler) as client:
        asked_at_s = time.monotonic()
        outcome = await ask(client, timeout_s=0.05)
        assert (outcome.status, outcome.error_message) == ("timeout", "HTTP timeout: no complete answer within 0.05 s")
        assert time.monotonic() - asked_at_s >= 0.05


async def test_bytes_that_are_no_http_are_an_error() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp ready\r\n\r\n")
        await reader.read()

    async with talking_to(handler) as client:
        outcome = await ask(client)
        assert (outcome.status, outcome.kind) == ("error", "malformed")


async def test_a_server_out_of_reach_is_named_with_the_reason() -> None:
    with reserved_port() as port:
        client = Client(parse_server(f"http://127.0.0.1:{port}"), timeout_s=PATIENCE_S, num_spare=1)
        with pytest.raises(RunError) as error:
            await client.open()
        await client.close()
    assert str(error.value) == f"cannot reach http://127.0.0.1:{port}: connection refused"


async def test_a_connection_lost_while_idle_is_replaced() -> None:
    connections = []
    replaced = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if len(connections) == 1:
            await asyncio.sleep(1.1)  # longer than a life that is no use
        else:
            replaced.set()
            await reader.read()

    async with talking_to(handler) as client, asyncio.timeout(PATIENCE_S):
        await client.open()
        await replaced.wait()


async def test_all_that_is_under_way_can_be_cancelled() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with talking_to(handler, num_spare=0) as client:
        waiting = [asyncio.create_task(ask(client)) for _ in range(3)]
        await asyncio.sleep(0.05)
        client.cancel_all()
        assert {(await each).kind for each in waiting} == {"cancelled"}
        assert client.num_in_flight == 0
