"""The names of a catalogue that come nearest to one that it lacks."""

import re
from collections.abc import Iterable

_MOST_SHOWN = 3
_LEAST_LIKENESS = 0.5
_LONGEST_NAME = 200
_SHORTEST_FAMILY = 3
"""Letters of the word with which names of one family begin, at least."""
_PARTS = re.compile(r"[a-z]+|\d+")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of `known` that share most words and letters with `name`, the nearest first."""
    requested = name.lower()[:_LONGEST_NAME]
    likeness = {each: _likeness(requested, each.lower()) for each in known}
    ranked = sorted(likeness, key=lambda each: (-likeness[each], each))
    return [each for each in ranked[:_MOST_SHOWN] if likeness[each] >= _LEAST_LIKENESS]


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return what to append to an error about `name`: its nearest matches, nothing when none is near."""
    found = nearest(name, known)
    return f", nearest are {', '.join(found)}" if len(found) > 1 else f", nearest is {found[0]}" if found else ""


def _likeness(requested: str, known: str) -> float:
    """Return the mean of the shared words and the shared letters, each from 0 to 1; 1 where one begins the other.

    Names of one family, which begin with the same word, are near whatever follows.
    """
    from difflib import SequenceMatcher  # a name that the catalogue has does without it

    if requested and (known.startswith(requested) or requested.startswith(known)):
        return 1.0
    words, others = _PARTS.findall(requested.rpartition("/")[2]), _PARTS.findall(known.rpartition("/")[2])
    all_words, all_others = set(_PARTS.findall(requested)), set(_PARTS.findall(known))
    shared = len(all_words & all_others) / max(len(all_words | all_others), 1)
    likeness = (shared + SequenceMatcher(None, requested, known, autojunk=False).ratio()) / 2
    is_family = words[:1] == others[:1] and len("".join(words[:1])) >= _SHORTEST_FAMILY
    return _LEAST_LIKENESS + (1 - _LEAST_LIKENESS) * likeness if is_family else likeness
