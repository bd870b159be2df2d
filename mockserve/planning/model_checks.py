"""Checks of a request's fields that need the served model: its vocabulary, its limits, its parsers."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.asked.vocabulary_checks import check_extra_arguments, check_vocabulary
from mockserve.protocol.refusals import refuse_thinking_budget
from mockserve.serving.service import Service


def check_with_model(
    service: Service,
    body: dict[str, Any],
    sampling: Sampling,
    kv_transfer_params: Mapping[str, Any] | None,
    searches_beams: bool,
) -> None:
    """Raise ApiError for fields that the served model cannot obey. Beam search looks at few of them, as in vLLM."""
    if not searches_beams:
        vocabulary_size = service.planner.vocabulary_size
        check_vocabulary(sampling, body.get("logit_bias"), vocabulary_size, service.options.replies.max_logprobs)
        refuse_thinking_budget(
            body.get("thinking_token_budget"), service.options.content.reasoning.reasoning_parser is not None
        )
    check_extra_arguments(body.get("vllm_xargs"), kv_transfer_params)
