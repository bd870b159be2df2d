"""Drafts of the published adaptive scheduler's worker, and the requests that get them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blis_sim.engine.speculation import Speculation

ADAPTIVE_BLOCKS = 129
"""Blocks of 16 tokens, one of which holds nothing: a budget of 2,048 tokens."""
DRAFTS, ACCEPTANCE, DRAFT_COST, DRAFT_US = 4, 0.85, 0.1, 40


def adaptive_speculation(seed: int) -> "Speculation":
    """Drafts of the worker: 4, each accepted with a chance of 0.85, for requests that pass the gates."""
    from blis_sim.engine.speculation import Speculation, SpeculationGates  # few deployments draft

    return Speculation(
        method="ngram",
        num_tokens=DRAFTS,
        acceptance_rates=(ACCEPTANCE,) * DRAFTS,
        seed=seed,
        draft_time_us=DRAFT_US,
        gates=SpeculationGates(min_tokens_left=DRAFTS),
        draft_cost=DRAFT_COST,
    )
