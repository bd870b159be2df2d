"""Messages of vLLM 0.33 are read and written as vLLM does."""

import msgspec
import numpy as np
import pytest

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import (
    EngineOutput,
    EngineOutputs,
    Finish,
    Frames,
    Greeting,
    Logprobs,
    MessageError,
    ReadyResponse,
)
from tests.wings.engine_core.frontend import recorded


@pytest.mark.parametrize("name", ["first_output", "outputs", "last_output", "stats_alone", "utility_output_tasks"])
def test_a_recorded_output_is_written_with_the_same_bytes(name: str) -> None:
    frame = recorded()[name]
    assert messages.encode(messages.read_outputs(frame)) == frame


def test_a_recorded_request_is_written_with_the_same_content() -> None:
    frame = recorded()["add"]
    found = messages.read_request(frame)
    assert msgspec.msgpack.decode(messages.encode(found)) == msgspec.msgpack.decode(frame)
    assert found.request_id.startswith("cmpl-")
    assert found.sampling_params is not None
    assert found.sampling_params["max_tokens"] == 60


def test_the_greetings_are_those_of_vllm() -> None:
    assert messages.encode(Greeting("HELLO")) == recorded()["hello"]
    assert messages.encode(Greeting("READY")) == recorded()["ready"]


def test_the_answer_to_hello_and_the_ready_response_are_written_with_the_same_bytes() -> None:
    welcome, ready = recorded()["welcome"], recorded()["ready_response"]
    assert messages.encode(messages.read_welcome(welcome)) == welcome
    assert messages.encode(msgspec.msgpack.decode(ready, type=ReadyResponse)) == ready


def test_ids_of_aborted_requests_and_calls_are_read() -> None:
    (aborted,) = messages.read_aborted(recorded()["abort"])
    assert aborted.startswith("cmpl-")
    assert messages.read_call(recorded()["call_reset_mm_cache"])[2:] == ("reset_mm_cache", [])


def test_a_request_with_more_fields_than_the_release_has_is_refused() -> None:
    fields = msgspec.msgpack.decode(recorded()["add"])
    with pytest.raises(
        MessageError, match=r"a request of \d+ bytes is none of vLLM 0\.33\.0: .* at most length 22, got 23"
    ):
        messages.read_request(msgspec.msgpack.encode([*fields, None]))


def test_an_answer_to_hello_with_unknown_fields_is_refused() -> None:
    welcome = msgspec.msgpack.decode(recorded()["welcome"])
    welcome["addresses"]["inputs_of_tomorrow"] = []
    with pytest.raises(MessageError, match="inputs_of_tomorrow"):
        messages.read_welcome(msgspec.msgpack.encode(welcome))


@pytest.mark.parametrize("code", [1, 2])
def test_a_pickled_object_is_never_unpacked(code: int) -> None:
    pickled = msgspec.msgpack.Ext(code, b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(MessageError, match="pickled"):
        messages.read_call(msgspec.msgpack.encode((0, 1, "collective_rpc", [pickled])))


def test_small_arrays_are_in_the_message_and_large_ones_in_frames() -> None:
    frames = Frames()
    small, large = np.arange(3, dtype=np.int32), np.ones((64, 2), dtype=np.float32)
    scores = Logprobs(frames.add(small), frames.add(large), frames.add(small, is_tensor=True))
    encoded = frames.encoded(EngineOutputs(0, [EngineOutput("r", [1], scores, finish_reason=Finish.STOP)]))
    assert len(encoded) == 2
    assert encoded[1] == large.tobytes()
    found = messages.read_outputs(encoded[0]).outputs[0].new_logprobs
    assert found is not None
    assert found.logprob_token_ids[:2] == ["<i4", [3]]
    assert bytes(found.logprob_token_ids[2]) == small.tobytes()
    assert list(found.logprobs) == ["<f4", [64, 2], 1]
    assert found.sampled_token_ranks[0] == "int32"
