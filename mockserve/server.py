"""The lifecycle of the server process: listening, startup messages, serving until a signal, and shutdown."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from blis_sim.engine.cluster.build import notes_on_cluster, with_one_latency_model
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import Deployment, notes_after
from blis_sim.options import with_settings
from mockserve.engines import deployment_of
from mockserve.executor.memory import return_large_blocks
from mockserve.http.sockets import raise_file_limit
from mockserve.listening import (
    ListeningServer,
    address,
    fastest_loop,
    keep_what_exists,
    log_application_startup,
    start,
    startup_line,
)
from mockserve.options.environment import ServerEnvironment, read_environment
from mockserve.options.serve import ServeOptions, check_processes
from mockserve.options.server import fields, set_up_logging
from mockserve.options.startup_checks import (
    flags_without_effect,
    flags_without_observable_effect,
    refuse_start,
    startup_problems,
    warnings_of,
    warnings_of_connector,
    warnings_of_overrides,
    warnings_of_tokenizer,
)
from mockserve.serving.lifecycle import Lifecycle, engine_death

_logger = logging.getLogger(__name__)


def serve(all_options: Sequence[ServeOptions], environment: ServerEnvironment | None = None) -> int:
    """Run one server per entry of `all_options` until SIGINT or SIGTERM. Returns the exit code.

    Raises BlisError for an invalid deployment or an unavailable address.
    """
    environment = read_environment() if environment is None else environment
    all_options = [
        replace(options, cluster=with_one_latency_model(with_policies(options.cluster))) for options in all_options
    ]
    first = all_options[0]
    check_processes(first, environment)
    shared = deployment_of(first)
    deployed = [
        (options, shared if with_settings(options, port=first.network.port) == first else deployment_of(options))
        for options in all_options
    ]
    set_up_logging(all_options[0].process.log_format)
    for options, deployment in deployed[:1] if all(each is shared for _, each in deployed) else deployed:
        for problem in startup_problems(options, deployment, environment):
            refuse_start(options, problem)
    for note in (*deployed[0][1].notes, *notes_on_cluster(first.cluster, deployed[0][1]), *_notes(first)):
        _say_note(note)
    raise_file_limit()
    return_large_blocks()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        if first.network.num_api_servers > 1:
            code = runner.run(_serve_in_processes(*deployed[0], environment))
        else:
            code = runner.run(_serve_until_signal(deployed, environment))
    for note in dict.fromkeys(note for _, deployment in deployed for note in notes_after(deployment)):
        _say_note(note)
    return code


async def _serve_in_processes(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> int:
    from mockserve.api_servers.engine_process import serve_in_processes  # few servers need it

    return await serve_in_processes(options, deployment, environment)


def _notes(options: ServeOptions) -> list[str]:
    """Return warnings about flags without effect, of vLLM's command line or ours."""
    ignored = flags_without_observable_effect(options.accepted_without_effect)
    accepted = [f"accepted, without effect here: {' '.join(ignored)}"] if ignored else []
    warnings = [
        *warnings_of(options.accepted_without_effect),
        *warnings_of_connector(options.kv_sharing.transfer),
        *warnings_of_tokenizer(options.content),
        *warnings_of_overrides(options.routes),
    ]
    return [*accepted, *warnings, *flags_without_effect(options)]


def _say_note(note: str) -> None:
    if note.startswith("warning: "):
        _logger.warning("%s", note.removeprefix("warning: "))  # the level expresses the word
    else:
        _logger.info("note: %s", note)


async def _wait_for_all_servers(stopping: asyncio.Event, servers: list[ListeningServer]) -> None:
    """Return after a signal, or when all engines have failed. A failed engine stops its own server only."""
    watching = {asyncio.ensure_future(_stop_on_engine_failure(server, servers)) for server in servers}
    signalled = asyncio.ensure_future(stopping.wait())
    everything_ended = asyncio.ensure_future(asyncio.wait(watching))
    await asyncio.wait((signalled, everything_ended), return_when=asyncio.FIRST_COMPLETED)
    for each in (signalled, everything_ended, *watching):
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each


async def _stop_on_engine_failure(server: ListeningServer, servers: list[ListeningServer]) -> None:
    if server.service.environment.keeps_alive_on_engine_death:
        await asyncio.Event().wait()
    error = await engine_death([server.service.lifecycle])
    _logger.error("port %d ends: the engine has failed: %s", server.port, str(error) or type(error).__name__)
    servers.remove(server)
    await asyncio.shield(server.stop())


async def _wait_for_stop(stopping: asyncio.Event, servers: Sequence[ListeningServer]) -> None:
    """Return after a signal, or when an engine has failed."""
    endings: list[asyncio.Future[object]] = [asyncio.ensure_future(stopping.wait())]
    if servers and not servers[0].service.environment.keeps_alive_on_engine_death:
        endings.append(asyncio.ensure_future(_note_death([server.service.lifecycle for server in servers])))
    await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
    for each in endings:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each


async def _note_death(lives: Sequence[Lifecycle]) -> None:
    error = await engine_death(lives)
    _logger.error("stopping: the engine has failed: %s", str(error) or type(error).__name__)


_MOST_LINES = 16
"""Maximum number of servers that log one startup line each."""


def _log_port_range(deployed: Sequence[tuple[ServeOptions, Deployment]], servers: Sequence[ListeningServer]) -> None:
    """Log one startup line for many servers."""
    (options, deployment), ports = deployed[0], [server.port for server in servers]
    shown = f"{min(ports)}-{max(ports)}" if max(ports) - min(ports) == len(ports) - 1 else ", ".join(map(str, ports))
    where = address(options, servers[0].host, 0).removesuffix("0") + shown
    _logger.info(startup_line(options, deployment, where), extra=fields(model=options.model_names[0], address=where))


def _log_started(deployed: Sequence[tuple[ServeOptions, Deployment]], servers: Sequence[ListeningServer]) -> None:
    for (options, deployment), server in zip(deployed, servers, strict=True):
        where = address(options, server.host, server.port)
        log_fields = fields(model=options.model_names[0], address=where)
        if len(servers) <= _MOST_LINES:
            _logger.info(startup_line(options, deployment, where), extra=log_fields)
        for instance, port in server.instance_ports.items():
            _logger.info("instance %d listens on %s", instance, address(options, server.host, port))
    if len(servers) > _MOST_LINES:
        _log_port_range(deployed, servers)
    if not deployed[0][0].network.grpc:
        log_application_startup([os.getpid()])


async def _serve_until_signal(
    deployed: Sequence[tuple[ServeOptions, Deployment]], environment: ServerEnvironment
) -> int:
    stopping, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A second signal ends the wait.
        loop.add_signal_handler(number, lambda: (at_once if stopping.is_set() else stopping).set())
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), deployed[0][0].process.startup_s)
    servers: list[ListeningServer] = []
    try:
        if not stopping.is_set():
            for options, deployment in deployed:
                vocabulary_source = servers[0].service if servers and options.instances.is_endpoint else None
                servers.append(await start(options, deployment, environment, vocabulary_source))
            keep_what_exists()
            _log_started(deployed, servers)
        if len(servers) > 1 and deployed[0][0].instances.is_endpoint:
            await _wait_for_all_servers(stopping, servers)
        else:
            await _wait_for_stop(stopping, servers)
    finally:
        num_open = sum(server.service.delivery.open_replies.number for server in servers)
        if num_open and not deployed[0][0].network.abrupt_shutdown:
            within_s = deployed[0][0].network.shutdown_timeout
            _logger.info("stopping: open replies: %d, cut after %d s", num_open, within_s, extra=fields(open=num_open))
        await asyncio.gather(*(server.stop(at_once) for server in servers))
    return 0
