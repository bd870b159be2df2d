"""An engine answers a frontend of vLLM 0.33: requests, ends, calls, and its own end."""

import asyncio
import logging
import random

import msgspec
import pytest

from blis_sim.options import StartError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.link import cancelled
from blis_sim.wings.engine_core.messages import EventKind, Finish
from tests.wings.engine_core.conftest import served
from tests.wings.engine_core.frontend import Frontend, recorded, request


async def test_the_handshake_has_the_bytes_of_vllms_engine(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        assert frontend.greetings == [recorded()["hello"], recorded()["ready"]]
        ready = msgspec.msgpack.decode(frontend.ready_response)
        genuine = msgspec.msgpack.decode(recorded()["ready_response"])
        assert list(ready) == list(genuine)
        assert ready["vllm_version"] == genuine["vllm_version"]
        assert ready["max_model_len"] == 4096
        assert ready["num_gpu_blocks"] > 1000
        assert ready["kv_events_config"] is None


async def test_a_recorded_request_gets_its_tokens_and_its_end(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.send(messages.ADD, recorded()["add"])
        name = messages.read_request(recorded()["add"]).request_id
        await frontend.until(lambda: frontend.has_ended(name))
        outputs = frontend.of(name)
        assert outputs[-1].finish_reason in (Finish.LENGTH, Finish.STOP)
        assert 1 <= sum(len(each.new_token_ids) for each in outputs) <= 60
        first = outputs[0]
        assert first.prefill_stats is not None
        assert first.prefill_stats.num_prompt_tokens == first.prefill_stats.num_computed_tokens
        assert [each.type for each in first.events or ()] == [EventKind.QUEUED, EventKind.SCHEDULED]
        assert all(each.prefill_stats is None for each in outputs[1:])


async def test_requests_of_one_step_are_in_one_message_with_its_statistics(frontend: Frontend) -> None:
    async with served(frontend.port, speed=0.2):
        await frontend.meet()
        await frontend.complete(*(request(name, list(range(5, 40)), 20) for name in "abc"))
        await frontend.until(lambda: all(map(frontend.has_ended, "abc")))
        steps = [each for each in frontend.outputs if each.outputs]
        assert any(len(each.outputs) == 3 for each in steps)
        assert all(each.scheduler_stats is not None and each.weight_version == "default" for each in steps)
        assert max(each.scheduler_stats.num_running_reqs for each in steps if each.scheduler_stats) >= 2
        queries = sum(each.scheduler_stats.prefix_cache_stats.queries for each in steps if each.scheduler_stats)
        assert queries == 3 * 35


async def test_a_repeated_prompt_is_found_in_the_cache(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        prompt = list(range(100, 200))
        for name in "ab":
            await frontend.complete(request(name, prompt))
            await frontend.until_ended(name)
        stats = frontend.of("b")[0].prefill_stats
        assert stats is not None
        assert (stats.num_cached_tokens, stats.num_computed_tokens) == (96, 4)
        assert (await frontend.call("reset_prefix_cache")).result == (None, True)
        await frontend.complete(request("c", prompt))
        await frontend.until(lambda: frontend.has_ended("c"))
        stats = frontend.of("c")[0].prefill_stats
        assert stats is not None
        assert stats.num_cached_tokens == 0


async def test_an_aborted_request_gets_no_more_outputs(frontend: Frontend) -> None:
    async with served(frontend.port, speed=1.0):
        await frontend.meet()
        await frontend.complete(request("a", [1, 2, 3], 2000), request("b", [1, 2, 3], 30))
        await frontend.until(lambda: frontend.of("a"))
        await frontend.send(messages.ABORT, messages.encode(["a", "unknown"]))
        await asyncio.sleep(0.1)
        number = len(frontend.of("a"))
        await frontend.until(lambda: frontend.has_ended("b"))
        assert len(frontend.of("a")) == number
        assert not frontend.has_ended("a")


async def test_log_probabilities_have_a_row_for_each_token(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.complete(request("a", [11, 12, 13, 14], 3, logprobs=2, prompt_logprobs=1))
        await frontend.until(lambda: frontend.has_ended("a"))
        first = frontend.of("a")[0]
        assert first.new_logprobs is not None
        assert list(first.new_logprobs.logprob_token_ids[:2]) == ["<i4", [1, 3]]
        assert first.new_prompt_logprobs_tensors is not None
        assert list(first.new_prompt_logprobs_tensors.logprobs[:2]) == ["float32", [3, 2]]


async def test_a_request_that_the_engine_refuses_ends_with_its_reason(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.complete(request("a", [10**6]), request("b", []))
        await frontend.until(lambda: frontend.has_ended("a") and frontend.has_ended("b"))
        (refused,) = frontend.of("a")
        assert refused.finish_reason is Finish.ERROR
        assert refused.error is not None
        assert refused.error.code == "validation_error"
        assert refused.error.message == "Token id 1000000 is out of vocabulary"


async def test_an_answer_obeys_a_schema(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.complete(
            request("a", [1, 2], 60, ignore_eos=False, structured_outputs={"choice": ["yes", "no"], "_backend": "auto"})
        )
        await frontend.until(lambda: frontend.has_ended("a"))
        assert frontend.of("a")[-1].finish_reason is Finish.STOP


async def test_media_are_computed_by_their_number_of_tokens(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        for name, image in (("a", "x"), ("b", "x"), ("c", "y")):
            with_image = request(name, [7] * 80)
            feature = messages.MediumFeature(None, "image", image, messages.Placeholder(0, 64))
            with_image.mm_features = [feature]
            await frontend.complete(with_image)
            await frontend.until_ended(name)
        found = [frontend.of(name)[0].prefill_stats for name in "abc"]
        assert [each.num_cached_tokens for each in found if each is not None] == [0, 64, 0]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 4000)] * 3, "media have more than 2 times the tokens of their prompt"),
        ([(0, 0)], "a medium has tokens 0 to 0 of 4000"),
        ([(1, 4000)], "a medium has tokens 1 to 4001 of 4000"),
    ],
)
async def test_media_that_no_prompt_has_are_refused_before_they_are_numbered(
    frontend: Frontend, places: list[tuple[int, int]], message: str
) -> None:
    async with served(frontend.port):
        await frontend.meet()
        asked = request("a", [7] * 4000)
        asked.mm_features = [
            messages.MediumFeature(None, "image", "x", messages.Placeholder(offset, length))
            for offset, length in places
        ]
        await frontend.complete(asked)
        await frontend.until_ended("a")
        (refused,) = frontend.of("a")
        assert refused.error is not None
        assert refused.error.message == message


async def test_calls_are_answered_as_vllms_engine_answers_them(frontend: Frontend) -> None:
    async with served(frontend.port, enable_lora=True):
        await frontend.meet()
        await frontend.send(messages.UTILITY, recorded()["call_get_supported_tasks"])
        await frontend.until(lambda: any(each.utility_output for each in frontend.outputs))
        answered = messages.read_outputs(recorded()["utility_output_tasks"]).utility_output
        assert [each.utility_output for each in frontend.outputs if each.utility_output] == [answered]
        assert (await frontend.call("is_sleeping", number=1)).result == (None, False)
        assert (await frontend.call("sleep", 1, "abort", number=2)).failure_message is None
        assert (await frontend.call("is_sleeping", number=3)).result == (None, True)
        assert (await frontend.call("wake_up", None, number=4)).result == (None, True)
        assert (await frontend.call("add_lora", ["ad", 3, "/ad"], number=5)).result == (None, True)
        assert (await frontend.call("list_loras", number=6)).result == (None, [3])
        assert (await frontend.call("remove_lora", 3, number=8)).result == (None, True)
        assert (await frontend.call("collective_rpc", "check_health", None, [], {}, number=9)).result == (None, [None])
        failed = await frontend.call("no_such_method", number=10)
        assert failed.failure_message is not None
        assert "no_such_method" in failed.failure_message
        failed = await frontend.call("sleep", 1, "maybe", number=11)
        assert failed.failure_message == "Call to sleep method failed: Invalid pause mode: maybe"


async def test_the_next_frontend_is_served_when_one_has_gone(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.complete(request("a", [1, 2, 3], 4000))
        await frontend.until(lambda: frontend.of("a"))
        port = frontend.port
        await frontend.close()
        second = Frontend(port)
        try:
            await second.meet()
            await second.complete(request("b", [1, 2, 3]))
            await second.until(lambda: second.has_ended("b"))
        finally:
            await second.close()


async def test_an_engine_without_a_frontend_gives_up_in_one_line(frontend: Frontend) -> None:
    async with served(frontend.port, handshake_timeout_s=0.2) as engine:
        with pytest.raises(StartError, match=r"no frontend answered at tcp://127.0.0.1:\d+ within 0.2 s"):
            await engine


async def test_a_dead_engine_tells_its_frontend(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    from blis_sim.engine.core import Engine

    async with served(frontend.port) as engine:
        await frontend.meet()

        def fail(*_arguments: object, **_named: object) -> None:
            raise RuntimeError("out of order")

        monkeypatch.setattr(Engine, "advance", fail)
        await frontend.complete(request("a", [1, 2, 3]))
        await frontend.until(lambda: [messages.ENGINE_DEAD] in frontend.frames)
        assert await engine == 1


async def test_a_message_that_would_take_long_to_read_is_ignored_in_one_line(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = [
        (messages.ADD, messages.encode(request("ids", [5] * 5_000_000))),
        (messages.ADD, messages.encode(request("arrays", [1], extra_args={"x": [[]] * 300_000}))),
        (messages.ABORT, messages.encode([""] * 600_000)),
        (messages.UTILITY, messages.encode((0, 1, "sleep", [{}] * 300_000))),
    ]
    caplog.set_level(logging.WARNING)
    async with served(frontend.port):
        await frontend.meet()
        for kind, content in hostile:
            await frontend.send(kind, content)
        await frontend.complete(request("alive", [1, 2, 3], logit_bias=dict.fromkeys(range(1, 150000), 1.5)))
        await frontend.until_ended("alive")
        assert frontend.of("alive")[-1].finish_reason is Finish.LENGTH
    lines = [each.getMessage() for each in caplog.records]
    assert len([each for each in lines if each.startswith("a message was ignored: a message has ")]) == len(hostile)


@pytest.mark.slow
async def test_mutated_messages_end_in_a_line_of_the_log_and_a_live_engine(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    random_bytes = random.Random(44)
    known = [(messages.ADD, recorded()["add"]), (messages.ABORT, recorded()["abort"])]
    known += [(messages.UTILITY, recorded()[f"call_{each}"]) for each in ("get_supported_tasks", "reset_mm_cache")]
    with caplog.at_level(logging.INFO):
        async with served(frontend.port):
            await frontend.meet()
            for number in range(10_000):
                await frontend.send(*_mutated(random_bytes, *random_bytes.choice(known)))
                if number % 500 == 499:
                    alive = f"alive-{number}"
                    await frontend.complete(request(alive, [1, 2, 3], 2))
                    await frontend.until_ended(alive)
                    frontend.frames.clear()
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("blis_sim.wings.engine_core")]
    assert any("a message was ignored" in each for each in lines)
    assert not any(each.exc_info for each in caplog.records)
    assert all("\n" not in each for each in lines)


def _mutated(draw: random.Random, kind: bytes, content: bytes) -> list[bytes]:
    """Return a message with some bytes changed, cut, doubled or of another kind."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(changed)) if changed else 0
        action = draw.randrange(4)
        if action == 0 and changed:
            changed[place] = draw.randrange(256)
        elif action == 1:
            changed[place:place] = draw.randbytes(draw.randint(1, 4))
        elif action == 2:
            del changed[place : place + draw.randint(1, 9)]
        else:
            changed += changed[place : place + 20]
    if draw.random() < 0.05:
        kind = draw.randbytes(draw.randint(0, 3))
    frames = [kind, bytes(changed)]
    return frames[: draw.choice((1, 2, 2, 2, 2, 2))] + [draw.randbytes(9)] * (draw.random() < 0.1)


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.005])
async def test_an_engine_that_is_ended_while_it_meets_its_frontend_ends(frontend: Frontend, delay_s: float) -> None:
    async with served(frontend.port) as task:
        await frontend.meet()
        await asyncio.sleep(delay_s)
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait((task,))


async def test_a_caller_that_is_cancelled_while_it_ends_its_tasks_ends_too() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    caller = asyncio.ensure_future(cancelled(asyncio.ensure_future(slow_to_end())))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_frontend_learns_where_kv_events_are(frontend: Frontend) -> None:
    config = '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0", "topic": "kv"}'
    async with served(frontend.port, kv_events_config=config):
        await frontend.meet()
        told = msgspec.msgpack.decode(frontend.ready_response)["kv_events_config"]
        assert (told["publisher"], told["topic"], told["buffer_steps"]) == ("zmq", "kv", 10_000)
