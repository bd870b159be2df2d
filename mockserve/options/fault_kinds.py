"""What can be made to go wrong: errors instead of a reply, replies that go wrong on their way, an engine that fails."""

from collections.abc import Mapping
from dataclasses import dataclass

from mockserve.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class ErrorFault:
    """An error instead of an answer."""

    status: int
    type: str
    message: str
    param: str | None = None
    asks_to_retry: bool = False
    """Whether it comes with Retry-After."""

    def error(self) -> ApiError:
        """The error as a reply."""
        return ApiError(self.message, status=self.status, kind=self.type, param=self.param)


ERRORS: Mapping[str, ErrorFault] = {
    "invalid_request": ErrorFault(400, "BadRequestError", "The request is invalid (a fault on purpose)."),
    "context_length": ErrorFault(
        400,
        "BadRequestError",
        "This model's maximum context length is exceeded (a fault on purpose).",
        "input_tokens",
    ),
    "invalid_api_key": ErrorFault(401, "AuthenticationError", "The API key is invalid (a fault on purpose)."),
    "permission_denied": ErrorFault(403, "PermissionDeniedError", "This is not permitted (a fault on purpose)."),
    "model_not_found": ErrorFault(404, "NotFoundError", "The model does not exist (a fault on purpose).", "model"),
    "timeout": ErrorFault(408, "Request Timeout", "The request took too long (a fault on purpose)."),
    "conflict": ErrorFault(409, "Conflict", "The request conflicts with another (a fault on purpose)."),
    "too_large": ErrorFault(413, "Request Entity Too Large", "The request is too large (a fault on purpose)."),
    "unprocessable": ErrorFault(
        422, "UnprocessableEntityError", "The request cannot be processed (a fault on purpose)."
    ),
    "rate_limit": ErrorFault(
        429, "RateLimitError", "Too many requests, retry later (a fault on purpose).", asks_to_retry=True
    ),
    "server_error": ErrorFault(500, "InternalServerError", "Internal server error (a fault on purpose)."),
    "bad_gateway": ErrorFault(502, "Bad Gateway", "The server behind gave no answer (a fault on purpose)."),
    "overloaded": ErrorFault(
        503, "Service Unavailable", "The engine is currently busy (a fault on purpose).", asks_to_retry=True
    ),
    "gateway_timeout": ErrorFault(504, "Gateway Timeout", "The server behind took too long (a fault on purpose)."),
}

SHAPES: Mapping[str, str] = {
    "slow_first_token": "nothing comes for a while, then everything that is due",
    "trickle": "what comes, comes in small pieces with a pause after each",
    "stall": "after some events nothing comes for a while",
    "disconnect": "after some events the connection is cut",
    "malformed": "after some events one is not JSON",
}
"""Replies that go wrong on their way: kind to what the client sees."""

REPLY_FAULTS = (*ERRORS, *SHAPES)

ENGINE_FAULTS: Mapping[str, str] = {
    "hang": "no step is taken; requests are taken in and wait",
    "death": "the engine is gone for good: errors for all, and /health says 503",
    "kv_exhaustion": "most of the KV cache is in use by nobody",
    "slow": "steps take longer",
}
"""What can happen to the engine: kind to what that means."""
