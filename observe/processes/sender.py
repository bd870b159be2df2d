"""A process that sends a share of a schedule: Python objects through pipes are its input and its output."""

import asyncio
import os
import pickle
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from observe.dispatch import Dispatcher
from observe.errors import RunError
from observe.event_loop import allow_many_connections, run_loop
from observe.live.table import progress_of
from observe.recording import Recorder
from observe.sending import Begin, Done, Ready, Share, connected_client, ready_dispatcher
from traces import TraceError

_SIZE = struct.Struct(">Q")


def packed(value: Any) -> bytes:
    """The bytes that `receive` makes the value of."""
    data = pickle.dumps(value)
    return _SIZE.pack(len(data)) + data


def read_packed(stream: BinaryIO) -> Any:
    """Wait for the next value. Raises EOFError at the end."""
    head = stream.read(_SIZE.size)
    if len(head) < _SIZE.size:
        raise EOFError
    return pickle.loads(stream.read(_SIZE.unpack(head)[0]))


async def receive(stream: asyncio.StreamReader) -> Any:
    """The next value; None when there are no more."""
    try:
        (size,) = _SIZE.unpack(await stream.readexactly(_SIZE.size))
        return pickle.loads(await stream.readexactly(size))
    except asyncio.IncompleteReadError:
        return None


_PERIOD_S = 0.5

Send = Callable[[object], None]


def main() -> None:
    """Receive a share, send it, report the outcome."""
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else gets among the messages

    def send(value: object) -> None:
        with suppress(BrokenPipeError):
            messages.write(packed(value))
            messages.flush()

    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
        share = read_packed(orders)
    allow_many_connections()
    send(run_loop(_send(share, send)))


async def _send(share: Share, send: Send) -> Done:
    options = share.options
    stop = asyncio.Event()
    try:
        client = await connected_client(share, share.clock)
    except (RunError, OSError) as error:
        return Done(problem=str(error))
    try:
        recorder = Recorder(
            client.clock,
            options.paths,
            None,
            options.warmup_requests,
            columns=share.columns,
            joins=True,
            failed=stop.set,
        )
    except (OSError, TraceError) as error:
        await client.close()
        return Done(problem=str(error))
    dispatcher = ready_dispatcher(share, client, recorder.record)
    send(Ready())
    try:
        await _until_the_end(dispatcher, recorder, stop, send)
    finally:
        num_not_sent = dispatcher.stop()
        client.cancel_all()
        recorder.close()
        await client.close()
    return Done(stats=recorder.stats, num_not_sent=num_not_sent, failure=recorder.failure, rescued=recorder.rescued)


async def _until_the_end(dispatcher: Dispatcher, recorder: Recorder, stop: asyncio.Event, send: Send) -> None:
    """Send after `Begin`, until all is sent, a file cannot be written or the parent process is gone."""
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    begin: Begin | None = await receive(orders)
    if begin is None:
        return
    sending = asyncio.create_task(dispatcher.run(begin.origin))
    reporting = asyncio.create_task(_keep_sending(dispatcher, recorder, send))
    others = [reporting, asyncio.create_task(receive(orders)), asyncio.create_task(stop.wait())]
    await asyncio.wait([sending, *others], return_when=asyncio.FIRST_COMPLETED)
    if sending.done():
        sending.result()
    for task in (sending, *others):
        task.cancel()


async def _keep_sending(dispatcher: Dispatcher, recorder: Recorder, send: Send) -> None:
    while True:
        await asyncio.sleep(_PERIOD_S)
        send(progress_of(dispatcher, recorder.stats))


if __name__ == "__main__":
    main()
