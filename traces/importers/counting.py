"""Counting the tokens of texts, with a tokenizer or by their length."""

from collections.abc import Callable

from blis_sim.options import OptionError
from traces.importers.settings import ConvertOptions

_CHARACTERS_PER_TOKEN = 4


def token_counter(options: ConvertOptions) -> tuple[Callable[[str], int], str]:
    """Return the function that counts the tokens of a text, and a note about it. Raises OptionError."""
    if options.tokenizer is None:
        return _estimate, f"tokens are estimated as one per {_CHARACTERS_PER_TOKEN} characters, give --tokenizer"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(options.tokenizer)
    except Exception as error:  # the library raises nothing more precise
        raise OptionError(f"--tokenizer must be a tokenizer.json, got {options.tokenizer}: {error}") from error
    return (lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)), "tokens are those of --tokenizer"


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
