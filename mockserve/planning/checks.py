"""Checks of a request against the served model, in vLLM's order."""

from collections.abc import Sequence
from typing import Any

from mockserve.protocol.asked.sampling import Common, Sampling, check_prompt_start
from mockserve.protocol.asked.vocabulary_checks import check_extra_arguments, check_vocabulary
from mockserve.protocol.refusals import refuse_thinking_budget
from mockserve.serving.model import ServedModel


def check_with_model(
    model: ServedModel,
    body: dict[str, Any],
    sampling: Sampling,
    common: Common,
    lengths: Sequence[int],
    searches_beams: bool,
) -> None:
    """Raise ApiError for fields that the served model cannot obey with prompts of these lengths, in vLLM's order.

    Beam search looks at few of them, as in vLLM.
    """
    for num_tokens in lengths:
        model.planner.budget(sampling, num_tokens)
    if not searches_beams:
        vocabulary_size = model.planner.vocabulary_size
        check_vocabulary(sampling, body.get("logit_bias"), vocabulary_size, model.options.replies.max_logprobs)
        refuse_thinking_budget(
            body.get("thinking_token_budget"), model.options.content.reasoning.reasoning_parser is not None
        )
    check_extra_arguments(body.get("vllm_xargs"), common.kv_transfer_params)
    for num_tokens in lengths:
        check_prompt_start(common, num_tokens)
