"""Vocabularies of the captured servers, cut down to the tokens that the tests of captured requests use.

Token ids, special tokens, merges and all else are kept as they are, so any text that was noted has the same tokens.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reference.used_tokens import used_tokens

FILLER = "\ue000"
"""A character for private use, with which tokens begin that stand for others."""


def packed_vocabulary(path: Path) -> Any:
    """Return a tokenizer.json whose model has the used tokens and the longest one alone."""
    content = json.loads(path.read_text(encoding="utf-8"))
    model = content["model"]
    spelt = {number: token for token, number in model["vocab"].items()}
    used = {spelt[number] for number in used_tokens(path.parents[1])[path.parent.name] if number in spelt}
    used |= {spelt[max(spelt)], max(spelt.values(), key=len), *(each["content"] for each in content["added_tokens"])}
    if "merges" in model:
        ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
        merges = sorted({merge for token in used for merge in merges_of(token, ranks)}, key=ranks.__getitem__)
        used |= {each for left, right in merges for each in (left, right, left + right)}
        model["merges"] = [" ".join(merge) for merge in merges]
        used |= {token for token in model["vocab"] if len(token) == 1}  # bytes
    model["vocab"] = {token: number for token, number in model["vocab"].items() if token in used}
    return content


def write_vocabulary(path: Path, packed: Any) -> None:
    """Write a tokenizer.json, in which tokens that no text has fill the places of those that were left out.

    The library counts the tokens of a model to number those that are added to it.
    """
    model = packed["model"]
    left_out = {*range(max(model["vocab"].values()))} - {*model["vocab"].values()}
    vocabulary = {**model["vocab"], **{f"{FILLER}{number}": number for number in left_out}}
    path.write_text(json.dumps({**packed, "model": {**model, "vocab": vocabulary}}), encoding="utf-8")


def merges_of(token: str, ranks: dict[tuple[str, ...], int]) -> list[tuple[str, str]]:
    """Return the merges that make a token of its bytes, the first ones first."""
    parts = list(token)
    found: list[tuple[str, str]] = []
    while True:
        known = [pair for pair in pairwise(parts) if pair in ranks]
        if not known:
            return found
        best = min(known, key=ranks.__getitem__)
        found.append(best)
        merged: list[str] = []
        for part in parts:
            if merged and (merged[-1], part) == best:
                merged[-1] += part
            else:
                merged.append(part)
        parts = merged
