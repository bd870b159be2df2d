"""The rules of schedulers that compose one batch after the other, by the name of their engine."""

from collections.abc import Mapping

from blis_sim.engine.scheduler.batch_rules import BatchRules
from blis_sim.engine.scheduler.faster_transformer import FasterTransformerRules
from blis_sim.engine.scheduler.lightllm import LightLLMRules
from blis_sim.engine.scheduler.orca import OrcaRules
from blis_sim.engine.scheduler.sarathi import SarathiRules
from blis_sim.engine.scheduler.vidur_vllm import VidurVllmRules

BATCH_RULES: Mapping[str, type[BatchRules]] = {
    "sarathi": SarathiRules,
    "vidur-vllm": VidurVllmRules,
    "orca": OrcaRules,
    "lightllm": LightLLMRules,
    "faster-transformer": FasterTransformerRules,
}
