"""Pipeline stages: which share of a step each computes, and when steps that follow each other enter and leave them."""

from collections import deque
from dataclasses import dataclass

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class PipelineStages:
    """The stages of an instance, in order.

    `shares` are the fractions of a step's time that each stage takes. Handing the activations of a step to the next
    stage takes `transfer_start_us` and `transfer_token_us` for each token of the step.
    """

    shares: tuple[float, ...]
    transfer_start_us: float = 0.0
    transfer_token_us: float = 0.0

    def __post_init__(self) -> None:
        if len(self.shares) < 2:
            raise EngineError(f"a pipeline must have at least 2 stages, got {len(self.shares)}")

    def transfer_us(self, num_tokens: int) -> Micros:
        """Return the time from the end of a step in one stage until the next stage can begin with it."""
        return round(self.transfer_start_us + self.transfer_token_us * num_tokens)

    def stage_times(self, duration_us: Micros) -> list[Micros]:
        """Return the time that a step of `duration_us` takes in each stage; together they are the duration."""
        ends: list[Micros] = []
        share = 0.0
        for each in self.shares[:-1]:
            share += each
            ends.append(int(duration_us * share))
        ends.append(duration_us)
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Pipeline:
    """Stages as queues: every stage computes one step after the other, in the order in which steps were composed.

    A step also waits for the tokens that were sampled as many compositions before as there are stages, which vLLM's
    workers take in at each composition. Facts: vllm/v1/worker/gpu/pp_utils.py, `PPHandler`.
    """

    __slots__ = ("_free_at", "_sampled_at", "_stages", "passages")

    def __init__(self, stages: PipelineStages) -> None:
        self._stages = stages
        self._free_at: list[Micros] = [0] * len(stages.shares)
        self._sampled_at: deque[Micros] = deque([0] * len(stages.shares))
        """Instants at which the tokens of the latest compositions are sampled; 0 where none are."""
        self.passages: list[tuple[Micros, Micros]] = []
        """Instants at which the step that entered last enters and leaves each stage."""

    def composed(self) -> None:
        """Note that a step, perhaps an empty one, is composed: the first stage waits for the tokens that it needs."""
        self._free_at[0] = max(self._free_at[0], self._sampled_at.popleft())
        self._sampled_at.append(0)

    def start(self, at: Micros) -> Micros:
        """Return when the first stage begins with a step composed at `at`."""
        return max(at, self._free_at[0])

    def enter(self, started_at: Micros, duration_us: Micros, num_tokens: int, samples: bool) -> tuple[Micros, Micros]:
        """Let the step composed last enter the first stage at `started_at`.

        Returns when it leaves that stage, and when it leaves the last one.
        """
        transfer_us = self._stages.transfer_us(num_tokens)
        free_at, at = self._free_at, started_at
        self.passages = []
        for stage, stage_us in enumerate(self._stages.stage_times(duration_us)):
            entered_at = max(at, free_at[stage])
            at = free_at[stage] = entered_at + stage_us
            self.passages.append((entered_at, at))
            at += transfer_us
        if samples:
            self._sampled_at[-1] = free_at[-1]
        return free_at[0], free_at[-1]
