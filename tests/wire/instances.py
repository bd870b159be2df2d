"""Common parts of tests of several live instances."""

import dataclasses
from typing import Any

from tests.fakes import TestLatency
from tests.wire.plain_http import PlainReply, call, metric
from tests.wire.serving import TestServer

SLOW = TestLatency(step_us=60_000_000)
"""Steps so long that no running request ends by itself."""

BODY = {"model": "m", "prompt": "a b", "max_tokens": 4, "ignore_eos": True}


def finished(server: TestServer, instance: int) -> float:
    return metric(server, "vllm:request_success_total", finished_reason="length", engine=str(instance))


def at_instance(server: TestServer, instance: int) -> TestServer:
    """Return the server with the port of one instance."""
    return dataclasses.replace(server, port=instances(server)[instance]["port"])


def instances(server: TestServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(server, "GET", "/blis/instances").json["instances"]
    return found


def lives(server: TestServer) -> list[str]:
    return [each["life"] for each in instances(server)]


def kill(server: TestServer, instance: int) -> PlainReply:
    return call(server, "DELETE", f"/blis/instances/{instance}")
