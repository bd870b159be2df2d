"""A process that answers: it reads requests, writes replies, and has its tokens from the engines' process."""

import asyncio
import itertools
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from blis_sim.options import BlisError
from mockserve.connections.slow_readers import SlowReaders
from mockserve.connections.sockets import raise_file_limit
from mockserve.engines.backend import Backend
from mockserve.engines.deployment import StructuredOutputBackend, deployment_of, with_features
from mockserve.listening import RunningServer, listen
from mockserve.log_lines import set_up_logging
from mockserve.metrics.histogram import Lateness
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.processes.channel import (
    Broken,
    Channel,
    DeathTold,
    Fail,
    Finish,
    FromAnswering,
    Listening,
    MetricsPage,
    Refused,
    RemoteMetrics,
    State,
    Stop,
    Stopping,
    Tokens,
    UsesBackend,
    WantFigures,
    open_channel,
)
from mockserve.processes.remote_driver import RemoteDriver
from mockserve.realtime.wire import Wire
from mockserve.serving.service import build_service
from mockserve.startup import fastest_loop, keep_what_exists

_logger = logging.getLogger(__name__)

ORPHANED = 1
"""Exit code when the engines' process has gone."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one of `num_processes` processes is to serve, its place among them, and where the engines are."""

    options: ServeOptions
    environment: ServerEnvironment
    place: int
    num_processes: int
    origin_s: float
    """What the monotonic clock reads at the simulated instant 0."""
    engines: socket.socket


def answer_until_told(assignment: Assignment) -> None:
    """Serve until the engines' process says that it is enough. Signals are its business alone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(assignment.options.process.log_format)
    raise_file_limit()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(assignment))


async def _serve(assignment: Assignment) -> None:
    told: asyncio.Queue[Stop] = asyncio.Queue()
    hearers: dict[type, Callable[[Any], None]] = {Stop: told.put_nowait}
    channel = await open_channel(assignment.engines, partial(_hear, hearers), _orphaned)
    try:
        server = await _listening(assignment, channel, hearers)
    except BlisError as error:
        channel.tell(Refused(str(error)))
        await channel.leave()
        return
    channel.tell(Listening(server.host, server.port))
    keep_what_exists()
    telling = asyncio.create_task(_tell_death(server, channel.tell))
    stop = await told.get()
    channel.tell(Stopping(server.service.num_answering))
    at_once = asyncio.Event()
    hurrying = asyncio.create_task(_hurry(stop, told, at_once))
    await server.stop(at_once)
    for task in (telling, hurrying):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await channel.leave()


async def _listening(
    assignment: Assignment, channel: Channel, hearers: dict[type, Callable[[Any], None]]
) -> RunningServer:
    """A server whose engines are at the other end of `channel`; `hearers` learn what to do with their messages."""
    options = assignment.options
    deployment = deployment_of(options)
    config, _ = with_features(options, deployment)
    wire, slow_readers = Wire(Lateness()), SlowReaders(options.network.max_unsent_kib * 1024)
    driver = RemoteDriver(config, options.speed, assignment.origin_s, wire, channel.tell)
    metrics = RemoteMetrics(wire.lateness, slow_readers, channel.tell)
    loop = asyncio.get_running_loop()
    structured_outputs = StructuredOutputBackend(
        options.content.structured_outputs.lenient_structured_outputs,
        # Requests may be planned in a thread, and a channel is used from the event loop only.
        lambda name: loop.call_soon_threadsafe(channel.tell, UsesBackend(name)),
    )
    hearers.update(
        {
            Tokens: driver.tokens,
            Finish: driver.finish,
            Fail: driver.fail,
            Broken: driver.broken,
            State: driver.state,
            UsesBackend: lambda message: structured_outputs.set_name(message.name),
            WantFigures: metrics.figures,
            MetricsPage: metrics.answered,
        }
    )
    numbers = itertools.count(assignment.place, assignment.num_processes)
    backend = Backend(
        wire, driver, metrics, slow_readers, request_numbers=numbers, structured_outputs=structured_outputs
    )
    return await listen(build_service(options, deployment, assignment.environment, backend), shares_port=True)


async def _tell_death(server: RunningServer, tell: Callable[[FromAnswering], None]) -> None:
    await server.service.death_told.wait()
    tell(DeathTold())


async def _hurry(stop: Stop, told: asyncio.Queue[Stop], at_once: asyncio.Event) -> None:
    while not stop.at_once:
        stop = await told.get()
    at_once.set()


def _hear(hearers: Mapping[type, Callable[[Any], None]], message: object) -> None:
    """Hand a message to its hearer; what comes before there is one means nothing yet."""
    hearer = hearers.get(type(message))
    if hearer is not None:
        hearer(message)


def _orphaned() -> None:
    """Nobody is there to bring tokens any more, or to say how it is to end."""
    _logger.error("stopping: the process of the engines has ended")
    os._exit(ORPHANED)
