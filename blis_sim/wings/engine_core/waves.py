"""The waves of data-parallel ranks that step together.

Facts: `DPEngineCoreProc` in vllm/v1/engine/core.py and vllm/v1/engine/coordinator.py. A wave begins with the first
request of any rank and ends when no rank has one; ranks without requests take empty steps in it.
"""

from collections.abc import Callable, Sequence

from blis_sim.wings.engine_core.core import RankCore
from blis_sim.wings.engine_core.messages import COORDINATOR, EngineOutputs, encode

Send = Callable[[int, list[bytes]], None]


class Waves:
    """The waves of all ranks of this process, which share experts."""

    def __init__(self, cores: Sequence[RankCore], sends: Sequence[Send]) -> None:
        """`sends` has a rank's function for messages, in the order of `cores`."""
        self.number = 0
        """Number of the present wave, or of the next one while all ranks are idle."""
        self.is_running = False
        self._cores, self._sends = cores, sends

    def request_came(self, index: int, wave: int) -> None:
        """Start a wave with a request for rank `index`; the coordinator then wakes the frontends' other ranks."""
        self.number = max(self.number, wave)
        if self.is_running:
            return
        self.is_running = True
        self._send(index, EngineOutputs(self._cores[index].rank, start_wave=self.number))

    def start(self, wave: int, _knowing_rank: int | None) -> None:
        """Begin a wave that another rank has begun."""
        if wave >= self.number:
            self.number = wave
            self.is_running = True

    def end_if_idle(self) -> None:
        """End the wave if no rank has a request. Rank 0 informs the coordinator."""
        if not self.is_running or any(core.num_open for core in self._cores):
            return
        self.is_running = False
        if self._cores[0].rank == 0:
            self._send(0, EngineOutputs(0, wave_complete=self.number))
        self.number += 1

    def _send(self, index: int, message: EngineOutputs) -> None:
        self._sends[index](COORDINATOR, [encode(message)])
