"""Made-up probabilities of tokens after a prompt: the same prompt always gives a token the same probability."""

import math
from collections.abc import Sequence
from hashlib import blake2b

SPREAD = 6.0
"""Logits of labels lie between -SPREAD and 0."""
NORMALIZER = 130.0
"""Keeps the sum of 128 labels, the most that a request may name, below 1."""


def label_score(prompt_digest: object, label_ids: Sequence[int], seed: int, applies_softmax: bool) -> float:
    """The probability of the first label: among the labels alone, or in the whole vocabulary."""
    weights = {label: math.exp(_logit(prompt_digest, label, seed)) for label in label_ids}
    total = sum(weights.values()) if applies_softmax else NORMALIZER
    return weights[label_ids[0]] / total


def _logit(prompt_digest: object, label: int, seed: int) -> float:
    drawn = blake2b(f"{seed} {prompt_digest!r} {label}".encode(), digest_size=8).digest()
    return -SPREAD * int.from_bytes(drawn, "big") / 2**64
