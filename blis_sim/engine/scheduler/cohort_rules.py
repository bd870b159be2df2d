"""Where sequences that decode can be sums, and what stands for their blocks where they cannot."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.sequence import Sequence


def can_have_cohort(config: EngineConfig) -> bool:
    """Whether sequences that decode get exactly one token in every step and only shareable blocks need names."""
    return (
        config.speculation is None
        and config.lora is None
        and not config.reports_kv_changes
        and config.prefill_schedule_interval == 1
        and config.pipeline is None
        and config.offload is None
        and config.preemption_policy != "gap"
    )


def take_none(_num_blocks: int) -> None:
    """Take nothing: without a cohort, blocks are taken sequence by sequence."""


def hold_none(_sequence: Sequence, _num_tokens: int) -> int:
    """Hold nothing: without a cohort, no prompt joins it."""
    return 0
