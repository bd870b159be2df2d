"""The settings of what replies report beside the text, and of how much may be asked for."""

from dataclasses import dataclass

from blis_sim.options import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Flags with vLLM's names and meanings, and one of our own for media."""

    enable_prompt_tokens_details: bool = option(
        False, "Report how many tokens of a prompt were cached.", heading="Replies"
    )
    enable_force_include_usage: bool = option(False, "Put token counts into every chunk of every stream.")
    enable_per_request_metrics: bool = option(False, "Report each request's own latencies in its reply.")
    return_tokens_as_token_ids: bool = option(False, "Name tokens by their ids wherever log-probabilities are shown.")
    max_logprobs: int = option(20, "Most log-probabilities per token a request may ask for; -1 is all.", at_least=-1)
    stream_interval: int = option(1, "Tokens that a chunk of a stream waits for, after the first.", at_least=1)
    sse_keep_alive_interval: int = option(
        0, "Seconds after which a quiet stream of chat or completions gets a comment; 0 for never.", at_least=0
    )
    tokens_per_medium: int = option(
        0, "Prompt tokens that each picture or recording counts; with 0 the model takes text only.", at_least=0
    )

    def __post_init__(self) -> None:
        check_options(self)
