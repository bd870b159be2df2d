"""Errors in vLLM's formats and in Anthropic's, with pydantic's text where vLLM returns it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.options import BlisError

# Errors in vLLM's formats: an envelope or a bare detail, and pydantic's text where vLLM returns it.

MAX_LISTED_PROBLEMS = 10
MAX_SHOWN_INPUT_CHARS = 200
MAX_PROBLEM_CHARS = 1000
CUT_MARK = "...[truncated]"

INVALID_BODY = "Bad Request"
"""The `type` of an error about a body that has another type than required."""

_NOT_GIVEN = object()


class ApiError(BlisError):
    """A refusal with an HTTP status. `kind` is the envelope's `type`; the envelope's `code` equals the status.

    A bare error has no envelope, as errors of the web framework.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        is_bare: bool = False,
        is_unhandled: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.is_bare = is_bare
        self.is_unhandled = is_unhandled
        """Whether vLLM's framework handles the error outside of the CORS middleware, so that the response has no CORS
        headers."""
        self.is_late = False
        """Whether vLLM detects the error in its engine, after the head of a stream has been sent."""

    def body(self) -> dict[str, Any]:
        """Return the JSON body, for a response and for an event of a stream."""
        if self.is_bare:
            return {"detail": self.message}
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Problem:
    """A field of a body that is missing or has the wrong type, in pydantic's terms."""

    kind: str
    location: str
    message: str
    found: Any
    context: Mapping[str, Any] | None = None

    def as_line(self) -> dict[str, Any]:
        shown = {"type": self.kind, "loc": self.location, "msg": self.message, "input": summary(self.found)}
        return shown if self.context is None else {**shown, "ctx": dict(self.context)}


def summary(value: Any) -> str:
    """Return a value as shown in errors: containers by their size, text shortened."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return _cut(str(value), MAX_SHOWN_INPUT_CHARS)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + CUT_MARK


def bad_value(message: str, param: str, value: Any = _NOT_GIVEN) -> ApiError:
    """Return the error of a refused field; the field's name, and the value if given, end the message."""
    shown = f"parameter={param}" if value is _NOT_GIVEN else f"parameter={param}, value={value}"
    return ApiError(f"{message} ({shown})", param=param)


class EmptyPromptError(ApiError):
    """A prompt without tokens."""


class BadFieldsError(ApiError):
    """A body whose fields have wrong types or are missing."""


def bad_fields(problems: Sequence[Problem], num_others: int = 0) -> ApiError:
    """Return the error of wrong types or missing fields; `param` is the first of them.

    `num_others` counts problems that are not among `problems`.
    """
    num_problems = len(problems) + num_others
    shown = [_cut(str(problem.as_line()), MAX_PROBLEM_CHARS) for problem in problems[:MAX_LISTED_PROBLEMS]]
    label = "errors" if num_problems > 1 else "error"
    if num_problems > len(shown):
        shown.append(f"...and {num_problems - len(shown)} more {label}")
    lines = "".join(f"\n  {each}" for each in shown)
    message = f"{num_problems} validation {label}:{lines}"
    return BadFieldsError(message, kind=INVALID_BODY, param=problems[0].location)


_TRACEBACK_LINE = re.compile(r'File "[^"]+", line \d+, in \S+(?:\n\s+.*)?')
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_SYSTEM_PATH = re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+")
_NAMES = re.compile(r"((?:/[\w\-]+)+)(\.\w+)?")
"""Names separated by slashes, and the suffix of the last. A file path has at least two names, and a suffix."""


def sanitized(message: str) -> str:
    """Return a library's message as vLLM returns it: without addresses, traceback lines, paths and surrounding space.

    The patterns of vLLM take time cubic in the length of a message, and clients can choose messages.
    """
    message = _without_tracebacks(_ADDRESS.sub(">", message))
    return _NAMES.sub(_without_path, _SYSTEM_PATH.sub("<path>", message)).strip()


def _without_tracebacks(message: str) -> str:
    """`message` without lines of tracebacks and the space before each."""
    parts: list[str] = []
    end = 0
    for found in _TRACEBACK_LINE.finditer(message):
        parts.append(message[end : found.start()].rstrip())
        end = found.end()
    return "".join([*parts, message[end:]])


def _without_path(names: "re.Match[str]") -> str:
    return "<path>" if names[2] and names[1].count("/") > 1 else names[0]


def mark_late(error: ApiError) -> ApiError:
    """Return `error`, marked to be sent as the only event of a stream."""
    error.is_late = True
    return error


def wrong_media_type() -> ApiError:
    """Return the error of a body that is not declared as JSON."""
    return ApiError(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
    )


def unknown_model(name: str, served: Sequence[str]) -> ApiError:
    """Return the error of a model `name` that is not served."""
    return ApiError(
        f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}.",
        status=404,
        kind="NotFoundError",
        param="model",
    )


def bad_request(message: str) -> ApiError:
    """Return the error of a route's own check, which is not about a field's type."""
    return ApiError(message, kind="Bad Request")


def paused(kind: str = "ServiceUnavailableError") -> ApiError:
    """Return the error of a paused server. In a chat stream `kind` is InternalServerError, as in vLLM."""
    return ApiError("Generation is paused. Please retry after it resumes.", status=503, kind=kind)


def engine_dead() -> ApiError:
    """Return the error of a broken engine, which does not reveal the cause."""
    return internal_error("The server had an error while processing your request.")


def not_an_object(value: Any) -> ApiError:
    """Return the error of a value that is not an object, where vLLM does not check its type first."""
    return unhandled_error(f"'{type(value).__name__}' object has no attribute 'get'")


def unhandled_error(message: str) -> ApiError:
    """Return an internal error that vLLM's framework handles outside of the CORS middleware. These are all exceptions
    but ValueError, TypeError, OverflowError, NotImplementedError and vLLM's own."""
    return ApiError(message, status=500, kind="InternalServerError", is_unhandled=True)


def internal_error(message: str = "Internal server error") -> ApiError:
    """Return an internal server error."""
    return ApiError(message, status=500, kind="InternalServerError")


def too_busy(limit: str) -> ApiError:
    """Return the error for a request above a limit."""
    if limit == "max_unfinished":
        return ApiError("Too many requests are waiting, retry later.", status=429, kind="RateLimitError")
    reason = {
        "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
        "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
    }[limit]
    message = f"{reason} Please try again later or on a different instance."
    return ApiError(message, status=503, kind="Service Unavailable")


# Errors in the form of Anthropic's API.

ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicError(ApiError):
    """A refusal in Anthropic's envelope and vocabulary."""

    def body(self) -> dict[str, Any]:
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


def in_form_of_route(error: ApiError, path: str) -> ApiError:
    """Return the error in Anthropic's form if the route at `path` has that form.

    vLLM's framework words errors about the types of a body alike for all routes.
    """
    is_of_framework = error.is_bare or error.kind == INVALID_BODY
    return error if is_of_framework or path not in ANTHROPIC_PATHS else anthropic_error(error)


def anthropic_error(error: ApiError) -> AnthropicError:
    """Return the error in the form of Anthropic's API."""
    kind = ERROR_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    reworded = AnthropicError(error.message, status=error.status, kind=kind)
    reworded.is_late = error.is_late
    return reworded
