"""gRPC and HTTP at one port, as llm-d-inference-sim serves them. gRPC serves one event loop of a process at a time."""

import json
import socket
import urllib.request
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.wire.serving import TestServer, running_server

grpc = pytest.importorskip("grpc")
pb = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2")
stubs = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2_grpc")


def request(ids: range = range(1, 41), stream: bool = True, max_tokens: int = 5) -> Any:
    sampling = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(
        request_id="r", tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=sampling, stream=stream
    )


def test_calls_and_http_share_a_port_where_that_is_asked_for() -> None:
    with running_server(shares_port_with_grpc=True, speed=50.0) as server:
        with grpc.insecure_channel(f"{server.host}:{server.port}") as channel:
            engine = stubs.VllmEngineStub(channel)
            streamed = list(engine.Generate(request(max_tokens=300), timeout=PATIENCE_S))
            assert len(streamed) == 301
            prompt = range(1, 2000)  # more than one frame of HTTP/2
            whole = list(engine.Generate(request(prompt, stream=False, max_tokens=3), timeout=PATIENCE_S))
            assert len(whole[0].complete.output_ids) == 3
            reply = requested(server, "/v1/completions", {"prompt": "hi", "max_tokens": 3})
            assert reply["usage"]["completion_tokens"] == 3
        with socket.create_connection((server.host, server.port), PATIENCE_S) as half:
            half.sendall(b"PRI * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert half.recv(100).startswith(b"HTTP/1.1 40")


def requested(server: TestServer, path: str, body: dict[str, Any]) -> Any:
    url = f"http://{server.host}:{server.port}{path}"
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=PATIENCE_S) as reply:
        return json.load(reply)
