"""A server in a separate thread, whose parts a test can inspect."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from blis_sim.engine.latency.model import LatencyModel
from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.listening import ListeningServer, fastest_loop, start
from mockserve.options.serve import ServeOptions
from mockserve.serving.service import Service
from tests.fakes import TestLatency
from tests.patience import PATIENCE_S


@dataclasses.dataclass(frozen=True, slots=True)
class TestServer:
    """A server under test. Its parts may be read from other threads, not changed."""

    __test__ = False

    host: str
    port: int
    service: Service

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def running_server(latency: LatencyModel | None = None, **settings: Any) -> Iterator[TestServer]:
    """A server on a free port with a step of 1 ms at 20 times real speed by default."""
    given: dict[str, Any] = {"model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1, "served_model_name": ("m",)}
    given |= {"max_model_len": 2048, "speed": 20.0, "host": "127.0.0.1", "port": 0}
    options = options_from(ServeOptions, **{**given, **settings})
    deployment = dataclasses.replace(deployment_of(options), latency=latency or TestLatency(step_us=1000))
    started = threading.Event()
    found: list[ListeningServer] = []
    loop = fastest_loop()()

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            found.append(loop.run_until_complete(start(options, deployment)))
            started.set()
            loop.run_forever()
            loop.run_until_complete(found[0].stop())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    started.wait(PATIENCE_S)
    server = found[0]
    try:
        yield TestServer(server.host, server.port, server.service)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
