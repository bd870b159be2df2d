"""What vLLM's API server cannot send to its engine: text without UTF-8, and integers of more than 64 bits.

vLLM answers such a request with an error that has no message, in a stream as its only event.
"""

import json
from collections.abc import Mapping
from typing import Any

from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.errors import ApiError, internal_error, late
from mockserve.protocol.reading.types import SMALLEST_INT64, is_text

LARGEST_UINT64 = 2**64 - 1


def check_engine_message(request_id: str, priority: int, sampling: Sampling | None = None) -> None:
    """Raise ApiError for a request that the engine cannot be sent."""
    if not is_text(request_id) or not SMALLEST_INT64 <= priority <= LARGEST_UINT64:
        raise _unsendable()
    if sampling is None:
        return
    if sampling.top_k > LARGEST_UINT64 or not all(map(is_text, (*sampling.stop, *sampling.bad_words))):
        raise _unsendable()


def check_extra_arguments(*arguments: Mapping[str, Any] | None) -> None:
    """Raise ApiError for further arguments of a request that the engine cannot be sent."""
    for each in arguments:
        if each and not is_text(json.dumps(each, ensure_ascii=False)):
            raise _unsendable()


def _unsendable() -> ApiError:
    return late(internal_error(""))
