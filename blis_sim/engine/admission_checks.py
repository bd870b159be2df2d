"""Requests that could never be served are refused before they wait: otherwise they would block the queue forever."""

from blis_sim.engine.config import EngineConfig


def refusal(config: EngineConfig, input_tokens: int, max_output_tokens: int) -> str | None:
    """Why a request can never be served, or None if it can.

    Only declared figures count, never the true output length (INV-9). Order and rules are BLIS's (EnqueueRequest).
    """
    if max_output_tokens < 0:
        return f"the output budget is negative ({max_output_tokens})"
    if config.engine != "blis":
        return _vllm_refusal(config, input_tokens, max_output_tokens)
    limit = config.max_model_len
    if limit and input_tokens >= limit:
        return f"the prompt has {input_tokens} tokens, max_model_len is {limit}"
    if limit and max_output_tokens and input_tokens + max_output_tokens > limit:
        return f"prompt and output budget are {input_tokens} + {max_output_tokens} tokens, max_model_len is {limit}"
    needed = -(-input_tokens // config.block_size_tokens)
    if needed > config.total_kv_blocks:
        return f"the prompt needs {needed} KV blocks, the cache has {config.total_kv_blocks}"
    return None


def num_surely_served(config: EngineConfig) -> int:
    """A prompt of 1 to so many tokens with a budget of at most so many is not refused: the quick answer for most."""
    if config.engine != "blis":
        return (config.max_model_len or config.limit_tokens) - 1
    num_tokens = config.total_kv_blocks * config.block_size_tokens
    return min(num_tokens, config.max_model_len // 2) if config.max_model_len else num_tokens


def _vllm_refusal(config: EngineConfig, input_tokens: int, max_output_tokens: int) -> str | None:
    """vLLM refuses a prompt or a budget that is too long by itself; together it cuts the budget silently."""
    limit = config.max_model_len or config.limit_tokens
    if input_tokens == 0:
        return "the prompt is empty"
    if input_tokens >= limit:
        return f"the prompt has {input_tokens} tokens, at most {limit - 1} fit"
    if max_output_tokens > limit:
        return f"the output budget is {max_output_tokens} tokens, at most {limit} fit"
    return None
