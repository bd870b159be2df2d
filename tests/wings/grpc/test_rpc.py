"""vLLM's gRPC interface, called through the client that vLLM's own package generates."""

import asyncio
import gc
import io
import logging
import os
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from sys import getrefcount
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from blis_sim.wings.grpc.servicer import VllmEngine, read_metadata
from mockserve.engines import deployment_of
from mockserve.listening import start
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from tests.patience import PATIENCE_S, wait_until
from tests.wire.serving import TestServer, running_server

grpc = pytest.importorskip("grpc")
pb = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2")
common = pytest.importorskip("smg_grpc_proto.generated.common_pb2")
stubs = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2_grpc")


IN_LIST_ONLY = 2
"""References to an object that only a list has, counted by a function that also has it."""
CONFIG = b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(grpc=True, speed=2.0) as found:
        yield found


@pytest.fixture(scope="module")
def engine(server: TestServer) -> Iterator[Any]:
    with grpc.insecure_channel(f"{server.host}:{server.port}") as channel:
        yield stubs.VllmEngineStub(channel)


def request(ids: range = range(1, 41), stream: bool = True, request_id: str = "r", **params: Any) -> Any:
    sampling = pb.SamplingParams(**{"max_tokens": 5, "ignore_eos": True, **params})
    return pb.GenerateRequest(
        request_id=request_id, tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=sampling, stream=stream
    )


async def test_throughput_is_logged_as_by_the_http_server(caplog: pytest.LogCaptureFixture) -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", hardware="H100", tp=1, port=0, grpc=True)
    logged = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "Avg prompt throughput" in record.getMessage():
                loop.call_soon_threadsafe(logged.set)

    handler = Noting()
    logger = logging.getLogger("mockserve.metrics.page")
    logger.addHandler(handler)
    server = await start(options, deployment_of(options), ServerEnvironment(log_stats_interval_s=0.01))
    try:
        with caplog.at_level(logging.DEBUG, logger=logger.name):
            await asyncio.wait_for(logged.wait(), PATIENCE_S)
    finally:
        await server.stop()
        logger.removeHandler(handler)


def test_a_stream_has_a_chunk_for_each_token_and_a_last_response_with_the_last_one(engine: Any) -> None:
    responses = list(engine.Generate(request(seed=7), timeout=PATIENCE_S))
    chunks = [each.chunk for each in responses[:-1]]
    last = responses[-1].complete
    assert [len(each.token_ids) for each in chunks] == [1] * 5
    assert {(each.prompt_tokens, each.completion_tokens, each.index) for each in chunks} == {(40, 1, 0)}
    assert (last.finish_reason, list(last.output_ids)) == ("length", list(chunks[-1].token_ids))
    whole = list(engine.Generate(request(seed=7, stream=False), timeout=PATIENCE_S))
    assert [list(each.complete.output_ids) for each in whole] == [[each.token_ids[0] for each in chunks]]
    assert whole[0].complete.cached_tokens == 32


def test_choices_scores_stops_and_constraints_come_as_they_are_asked_for(engine: Any) -> None:
    found = list(engine.Generate(request(stream=False, n=2, logprobs=2, prompt_logprobs=1), timeout=PATIENCE_S))
    assert [each.complete.index for each in found] == [0, 1]
    scores = found[0].complete.output_logprobs
    assert list(scores.token_ids) == list(found[0].complete.output_ids)
    assert [len(each.values) for each in scores.top_logprobs] == [2] * 5
    prompt = found[0].complete.input_logprobs
    assert list(prompt.token_ids) == list(range(1, 41))
    assert not prompt.token_logprobs[0].HasField("value")
    assert all(each.value < 0 for each in prompt.token_logprobs[1:])
    choice = pb.ChoiceConstraint(choices=["yes"])
    (held,) = engine.Generate(request(stream=False, choice=choice, ignore_eos=False), timeout=PATIENCE_S)
    assert held.complete.finish_reason == "stop"


def test_a_message_far_beyond_the_context_is_refused_before_it_is_parsed(engine: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(engine.Generate(request(range(1, 400_000)), timeout=PATIENCE_S))
    assert refused.value.code().name == "RESOURCE_EXHAUSTED"
    with pytest.raises(grpc.RpcError) as refused:
        list(engine.Generate(request(range(1, 100_000)), timeout=PATIENCE_S))
    assert refused.value.code().name == "INVALID_ARGUMENT"
    assert engine.Abort(pb.AbortRequest(request_ids=map(str, range(3000))), timeout=PATIENCE_S) == pb.AbortResponse()


def test_a_refused_call_leaves_no_message_in_memory(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = []
    planned = VllmEngine._planned

    async def noted(self: VllmEngine, message: Any) -> Any:
        messages.append(message)
        return await planned(self, message)

    monkeypatch.setattr(VllmEngine, "_planned", noted)
    gc.disable()  # a server's collector runs after many calls
    try:
        for number in range(5):
            with pytest.raises(grpc.RpcError):
                list(engine.Generate(request(range(1, 3000), request_id=str(number)), timeout=PATIENCE_S))
        wait_until(lambda: all(getrefcount(messages[place]) == IN_LIST_ONLY for place in range(4)))
    finally:
        gc.enable()
    assert len(messages) == 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ids": range(1, 3000)}, "The decoder prompt (length 2999) is longer than the maximum model length of 2048."),
        ({"temperature": -1.0}, "temperature must be non-negative, got -1.0."),
        ({"ids": range(1, 1)}, "The decoder prompt cannot be empty"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"regex": "("}, ""),
    ],
)
def test_what_vllm_refuses_is_an_invalid_argument(engine: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(engine.Generate(request(**wrong), timeout=PATIENCE_S))
    assert refused.value.code().name == "INVALID_ARGUMENT"
    assert refused.value.details().startswith(words)


@pytest.mark.parametrize("method", ["Embed", "Abort"])
def test_a_malformed_message_is_one_line_of_the_log(
    method: str, server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(f"{server.host}:{server.port}") as channel:
        call = channel.unary_unary(f"/vllm.grpc.engine.VllmEngine/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff\xff no message", timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    wait_until(lambda: bool(caplog.records))
    (record,) = caplog.records
    assert f"VllmEngine/{method}]: Error parsing message" in record.getMessage()
    assert record.exc_info is None


def test_the_server_describes_itself_and_ends_requests_on_demand(server: TestServer, engine: Any) -> None:
    assert engine.HealthCheck(pb.HealthCheckRequest()).healthy
    model = engine.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.served_model_name, model.max_context_length, model.is_generation) == ("m", 2048, True)
    stream = engine.Generate(request(max_tokens=1500, request_id="long"), timeout=PATIENCE_S)
    next(stream)
    (load,) = engine.GetLoads(pb.GetLoadsRequest()).loads
    assert (load.num_running_reqs, load.num_waiting_reqs) == (1, 0)
    assert load.num_used_tokens > 0
    engine.Abort(pb.AbortRequest(request_ids=["long"]))
    last = list(stream)[-1].complete
    assert last.finish_reason == "abort"
    assert engine.GetLoads(pb.GetLoadsRequest()).loads[0].num_running_reqs == 0
    assert engine.FlushCache(common.FlushCacheRequest(timeout_s=1)).success
    assert engine.GetServerInfo(pb.GetServerInfoRequest()).block_size == 16


def test_a_hundred_streams_at_once_come_complete(engine: Any) -> None:
    streams = [engine.Generate(request(request_id=f"r{number}"), timeout=PATIENCE_S) for number in range(100)]
    assert [sum(len(each.chunk.token_ids) for each in stream) for stream in streams] == [5] * 100


def test_a_client_that_hangs_up_frees_its_request(engine: Any) -> None:
    stream = engine.Generate(request(max_tokens=1900, request_id="gone"), timeout=PATIENCE_S)
    next(stream)
    stream.cancel()
    for _ in range(500):
        if not engine.GetLoads(pb.GetLoadsRequest()).loads[0].num_running_reqs:
            return
    pytest.fail("the request is still running")


def test_settings_without_a_meaning_for_calls_are_refused_and_a_taken_port_is_named() -> None:
    with pytest.raises(OptionError, match="--grpc and --api-key exclude each other"):
        options_from(ServeOptions, model="qwen/qwen3-14b", grpc=True, api_key=("k",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = {"host": "127.0.0.1", "port": taken.getsockname()[1]}
        options = options_from(ServeOptions, model="qwen/qwen3-14b", grpc=True, **address)
        with pytest.raises(OptionError, match=r"cannot listen on 127\.0\.0\.1 port"):
            asyncio.run(start(options, deployment_of(options)))


def test_tokenizer_files_of_a_folder_come_as_an_archive_in_pieces(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json", "notes.txt"):
        (tmp_path / name).write_bytes(os.urandom(50_000).hex().encode() if name != "config.json" else CONFIG)
    facts = read_metadata(str(tmp_path))
    assert (facts.model_type, facts.architectures) == ("llama", ("LlamaForCausalLM",))
    with zipfile.ZipFile(io.BytesIO(facts.archive)) as archive:
        assert archive.namelist() == ["tokenizer.json", "config.json"]
    assert facts == read_metadata(str(tmp_path))
    assert read_metadata("qwen/qwen3-14b").archive == b""


def test_a_model_of_the_catalogue_has_no_tokenizer_files(engine: Any) -> None:
    with pytest.raises(grpc.RpcError, match="No tokenizer files found"):
        list(engine.GetTokenizer(common.GetTokenizerRequest(), timeout=PATIENCE_S))
