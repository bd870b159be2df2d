"""Languages that Whisper recognizes, by the codes that a request to transcribe or translate may name."""

from mockserve.protocol.errors import ApiError

_SUPPORTED = (
    "af ar hy az be bs bg ca zh hr cs da nl en et fi fr gl de el he hi hu is id it ja kn kk ko lv lt mk ms mr mi ne no "
    "fa pl pt ro ru sr sk sl es sw sv tl ta th tr uk ur vi cy"
)
_OTHER = (
    "la ml te bn br eu mn sq pa si km sn yo so oc ka tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo mg as tt haw "
    "ln ha ba jw su yue"
)

SUPPORTED_LANGUAGES = _SUPPORTED.split()
"""Languages that vLLM lists as supported, in its order."""

OTHER_LANGUAGES = frozenset(_OTHER.split())
"""Languages of the tokenizer that vLLM takes without support for them."""

WITHOUT_SPACES = frozenset({"ja", "zh"})
"""Languages in which vLLM joins the texts of two stretches of a recording without a space."""


def check_language(language: str | None) -> None:
    """Raise ApiError for a language that is neither supported nor known to the tokenizer."""
    if language is not None and language not in SUPPORTED_LANGUAGES and language not in OTHER_LANGUAGES:
        raise ApiError(f"Unsupported language: {language!r}.  Must be one of {SUPPORTED_LANGUAGES}.")


def separator_of(language: str) -> str:
    """Text between those of two stretches of a recording."""
    return "" if language in WITHOUT_SPACES else " "
