"""An engine of a pooling model answers a frontend with vectors."""

import numpy as np
import pytest

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import EngineOutput, EngineRequest, Finish, LateInteraction, PoolingParams
from tests.wings.engine_core.conftest import served
from tests.wings.engine_core.frontend import Frontend

SIZE = 400
OVERRIDES = f'{{"hidden_size": {SIZE}}}'


def pooled(name: str, prompt: list[int], **params: object) -> EngineRequest:
    """Return a request for a vector, as a frontend sends it."""
    return EngineRequest(name, prompt, None, None, PoolingParams(**params), 0.0, None, None, None)  # type: ignore[arg-type]


def vector_of(frontend: Frontend, name: str) -> "np.typing.NDArray[np.float32]":
    """Return the vector that a request got: inside of the message, or in the frame that it names."""
    for frames in frontend.frames:
        for each in messages.read_outputs(frames[0]).outputs:
            if each.request_id == name and each.pooling_output is not None:
                kind, shape, data = each.pooling_output
                assert kind == "float32"
                content = frames[data] if isinstance(data, int) else bytes(data)
                return np.frombuffer(content, np.float32).reshape(shape)
    raise AssertionError(f"{name} got no vector")


async def test_an_embedding_is_a_vector_of_the_models_size_at_the_end_of_its_prompt(frontend: Frontend) -> None:
    async with served(frontend.port, task=("embed",), hf_overrides=OVERRIDES):
        await frontend.meet()
        await frontend.complete(*(pooled(name, list(range(5, 40)), task="embed") for name in "ab"))
        await frontend.until(lambda: all(map(frontend.has_ended, "ab")))
        [output] = frontend.of("a")
        assert output.finish_reason == Finish.STOP
        assert not output.new_token_ids
        assert output.prefill_stats is not None
        assert output.prefill_stats.num_prompt_tokens == 35
        first, second = (vector_of(frontend, name) for name in "ab")
        assert first.shape == (SIZE,)
        assert np.linalg.norm(first) == pytest.approx(1)
        assert np.array_equal(first, second)


async def test_a_task_that_the_model_lacks_is_refused(frontend: Frontend) -> None:
    async with served(frontend.port, task=("embed",)):
        await frontend.meet()
        await frontend.complete(pooled("a", [5, 6], task="classify"))
        await frontend.until(lambda: frontend.has_ended("a"))
        assert _error(frontend.of("a")) == "Unsupported task: 'classify' Supported tasks: ['embed']"


async def test_a_model_that_generates_refuses_to_pool(frontend: Frontend) -> None:
    async with served(frontend.port):
        await frontend.meet()
        await frontend.complete(pooled("a", [5, 6], task="embed"))
        await frontend.until(lambda: frontend.has_ended("a"))
        assert _error(frontend.of("a")) == "Unsupported task: 'embed' Supported tasks: []"


async def test_a_document_is_scored_against_the_query_that_came_before(frontend: Frontend) -> None:
    async with served(frontend.port, task=("token_embed",)):
        await frontend.meet()
        query = LateInteraction("cache_query", "q", 1)
        await frontend.complete(pooled("q", [5, 6], task="token_embed", late_interaction_params=query))
        await frontend.until(lambda: frontend.has_ended("q"))
        documents = {"same": [5, 6, 7], "other": [90, 91, 92]}
        for name, prompt in documents.items():
            late = LateInteraction("score_doc", "q")
            await frontend.complete(pooled(name, prompt, task="token_embed", late_interaction_params=late))
        await frontend.until(lambda: all(map(frontend.has_ended, documents)))
        assert vector_of(frontend, "q") == 0
        assert vector_of(frontend, "same") == pytest.approx(2, abs=1e-3)
        assert vector_of(frontend, "other") < 1.5


def _error(outputs: list[EngineOutput]) -> str:
    [output] = outputs
    assert output.finish_reason == Finish.ERROR
    assert output.error is not None
    return output.error.message
