"""Engines whose rules compose one batch after the other, by their names. A new one is one file and one row here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from blis_sim.engine.scheduler.batch_engine_scheduler import BatchEngineScheduler
from blis_sim.engine.scheduler.batch_rules import BatchLimits, BatchRules
from blis_sim.engine.scheduler.faster_transformer import FasterTransformerRules
from blis_sim.engine.scheduler.lightllm import LightLLMRules
from blis_sim.engine.scheduler.orca import OrcaRules
from blis_sim.engine.scheduler.sarathi import SarathiRules
from blis_sim.engine.scheduler.splitwise import SplitwiseRules
from blis_sim.engine.scheduler.vidur_vllm import VidurVllmRules

if TYPE_CHECKING:
    from blis_sim.engine.context import EngineContext

BATCH_RULES: Mapping[str, type[BatchRules]] = {
    "sarathi": SarathiRules,
    "vidur-vllm": VidurVllmRules,
    "orca": OrcaRules,
    "lightllm": LightLLMRules,
    "faster-transformer": FasterTransformerRules,
    "splitwise": SplitwiseRules,
}


def new_batch_engine(context: "EngineContext", reports_steps: bool) -> BatchEngineScheduler:
    """Return what takes the steps of the engine that the configuration names."""
    config = context.config
    limits = BatchLimits(
        num_blocks=config.total_kv_blocks,
        block_size_tokens=config.block_size_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.token_budget,
        max_model_len=config.limit_tokens,
        num_stages=config.num_stages,
    )
    return BatchEngineScheduler(context, reports_steps, BATCH_RULES[config.engine](limits))
