"""Texts that llguidance accepts, written byte by byte under its own masks: slow, but right for every grammar."""

from random import Random

from mockserve.content.constraints.characters import PRINTABLE

MOST_CHARS = 4000
_CLOSING = '"]}>)'
_USUAL = PRINTABLE.encode()
_SPACE = ord(" ")


def guided_text(grammar: str, random: Random, room: int) -> str:
    """A text of the grammar, in llguidance's notation; what there is of it, where it does not end.

    Beyond `room` characters, the text ends as soon as it may.
    """
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    written = bytearray()
    while len(written) < MOST_CHARS and not matcher.is_stopped():
        if matcher.is_accepting() and (len(written) >= room or random.random() < 0.2):
            break
        forced = matcher.compute_ff_bytes()
        allowed = [forced[0]] if forced else _allowed(matcher.compute_bitmask())
        if not allowed:
            break
        byte = _chosen(allowed, random, heads_for_end=len(written) >= room)
        if not matcher.consume_token(byte):
            break
        written.append(byte)
    return written.decode(errors="ignore")


def _allowed(mask: bytes) -> list[int]:
    return [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]


def _chosen(allowed: list[int], random: Random, heads_for_end: bool) -> int:
    if heads_for_end:
        closing = [byte for byte in allowed if chr(byte) in _CLOSING]
        if closing:
            return closing[0]
    usual = [byte for byte in _USUAL if byte in allowed and not (heads_for_end and byte == _SPACE)]
    return random.choice(usual or allowed)
