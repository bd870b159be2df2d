"""How a cluster separates prompts from answers."""

from dataclasses import dataclass, field

from blis_sim.engine.cluster.disaggregation.deciders import DECIDERS
from blis_sim.engine.cluster.disaggregation.pools import Pools
from blis_sim.engine.cluster.disaggregation.transfer import TransferSettings
from blis_sim.engine.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationSettings:
    """Raises EngineError for a decider that does not exist."""

    pools: Pools
    decider: str = "never"
    threshold_tokens: int = 0
    transfer: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        if self.decider not in DECIDERS:
            raise EngineError(f"the P/D decider must be one of {', '.join(DECIDERS)}, got {self.decider!r}")
