"""Long texts are encoded beside the loop, so that streams go on meanwhile, where nothing waits for simulated time."""

import asyncio

from mockserve.content.tokens.tokenizer import Tokenizer

LONG_TEXT_CHARS = 20_000
"""From here on a tokenizer file takes 5 ms and more."""


async def encode_aside(tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """The token ids of `text`, from a thread if it is long."""
    if len(text) < LONG_TEXT_CHARS:
        return tokenizer.encode(text, add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)
