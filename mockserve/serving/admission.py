"""Requests that are being answered, how many more are taken, and the answers of vLLM to those that are not."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from mockserve.protocol.errors import ApiError


class OpenReplies:
    """Each reply is counted within a `with` block, and so is the planning of one that takes several turns."""

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_error: object) -> None:
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Return when there is none any more, or when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a reply that was planned begins as soon as its plan ends
                    self._idle.clear()
                    await self._idle.wait()


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """None is no limit."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_unfinished: int | None = None
    """Not vLLM's: those that run and those that may wait."""

    @property
    def limits_anything(self) -> bool:
        return not self.max_num_queued_reqs is self.max_num_queued_tokens is self.max_unfinished is None

    def exceeded(self, num_unfinished: int, num_new: int, num_waiting_tokens: int) -> str | None:
        """The name of the limit that `num_new` more requests would exceed."""
        if self.max_num_queued_reqs is not None and num_unfinished + num_new > self.max_num_queued_reqs:
            return "max_num_queued_reqs"
        if self.max_num_queued_tokens is not None and num_waiting_tokens >= self.max_num_queued_tokens:
            return "max_num_queued_tokens"
        if self.max_unfinished is not None and num_unfinished + num_new > self.max_unfinished:
            return "max_unfinished"
        return None


def too_busy(limit: str) -> ApiError:
    """The answer to a request over a limit."""
    if limit == "max_unfinished":
        return ApiError("Too many requests are waiting, retry later.", status=429, kind="RateLimitError")
    reason = {
        "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
        "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
    }[limit]
    message = f"{reason} Please try again later or on a different instance."
    return ApiError(message, status=503, kind="Service Unavailable")


def no_worker() -> ApiError:
    """The answer to a demand for which no worker process can be started."""
    message = "No process could be started for the request. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


def worker_killed() -> ApiError:
    """The answer to a demand whose worker processes were killed by something outside of the server."""
    message = "The process for the request was killed. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")
