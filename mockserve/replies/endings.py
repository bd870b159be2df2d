"""How a choice ends, as its client and as the engine see it."""

from collections.abc import Mapping
from http import HTTPStatus

from mockserve.protocol.bodies import Ending
from mockserve.protocol.errors import ApiError, engine_dead
from mockserve.replies.generation import Generation


def ending_at(generation: Generation, num_tokens: int, is_stream: bool = False) -> Ending:
    """The planned ending, or `length` when the engine stopped earlier."""
    answer = generation.answer
    if num_tokens < answer.num_tokens:
        return Ending("length")
    return answer.ending if answer.streamed_ending is None or not is_stream else answer.streamed_ending


def engine_reason(generation: Generation) -> str:
    """Why a choice ended as the engine sees it, which knows nothing of tool calls."""
    reason = generation.answer.ending.finish_reason
    return "stop" if reason == "tool_calls" else reason


def failure(message: str, status: int) -> ApiError:
    """A refusal is the request's fault; anything else is a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
