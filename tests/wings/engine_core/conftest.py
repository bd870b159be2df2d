"""An engine behind a frontend of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from blis_sim.engine.latency.wrapped import EngineAlone
from blis_sim.options import with_settings
from blis_sim.wings.engine_core.options import EngineCoreOptions
from blis_sim.wings.engine_core.session import serve_frontends
from mockserve.engines import deployment_of
from mockserve.options.environment import read_environment
from tests.wings.engine_core.frontend import Frontend


@asynccontextmanager
async def served(port: int, **changed: object) -> AsyncIterator["asyncio.Task[int]"]:
    """Run an engine that looks for its frontend at a port, and end it afterwards."""
    options = EngineCoreOptions(
        model_argument="qwen/qwen3-14b", data_parallel_rpc_port=port, speed=50.0, handshake_timeout_s=20.0
    )
    options = with_settings(options, **{"max_model_len": 4096, **changed})
    deployment = deployment_of(options.of_local_ranks)
    deployment = replace(deployment, latency=EngineAlone(deployment.latency))
    task = asyncio.ensure_future(serve_frontends(options, deployment, read_environment()))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    """A frontend that waits for an engine."""
    found = Frontend()
    yield found
    await found.close()
