"""Which instance computes prompts, which answers, which both."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise

from blis_sim.engine.errors import EngineError


class Role(StrEnum):
    """What an instance does for requests whose prompt and answer are computed apart."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "prefill-decode"
    ENCODE = "encode"


@dataclass(frozen=True, slots=True)
class Pools:
    """How many instances have which role, counted from the first instance on. Raises EngineError."""

    num_instances: int
    num_prefill: int = 0
    num_decode: int = 0
    num_both: int = 0
    num_encode: int = 0

    def __post_init__(self) -> None:
        if self.num_assigned > self.num_instances:
            raise EngineError(
                f"--prefill-instances, --decode-instances, --prefill-decode-instances and --encode-instances must add "
                f"up to at most --num-instances ({self.num_instances}), got {self.num_assigned}"
            )
        if self.is_disaggregated and not (self.prefill and self.decode):
            raise EngineError(
                "separate pools need at least one instance that computes prompts and one that answers: "
                "give --prefill-instances and --decode-instances, or --prefill-decode-instances"
            )

    @property
    def num_assigned(self) -> int:
        return self.num_prefill + self.num_decode + self.num_both + self.num_encode

    @property
    def is_disaggregated(self) -> bool:
        """Whether instances have roles at all."""
        return bool(self.num_assigned)

    @property
    def prefill(self) -> tuple[int, ...]:
        """Instances that may compute prompts for others."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.PREFILL, Role.BOTH))

    @property
    def decode(self) -> tuple[int, ...]:
        """Instances that may answer."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.DECODE, Role.BOTH))

    @property
    def roles(self) -> tuple[Role | None, ...]:
        """Of each instance by its index; None for one without work, as no pool has it."""
        sizes = (self.num_prefill, self.num_decode, self.num_both, self.num_encode)
        roles: list[Role | None] = [None] * self.num_instances
        for role, (first, end) in zip(Role, pairwise((0, *accumulate(sizes))), strict=True):
            roles[first:end] = [role] * (end - first)
        return tuple(roles)
