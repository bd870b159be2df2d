"""Synthetic load in addition to requests of clients: requests that decode without end, and withheld KV blocks."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.units import Micros
from mockserve.engines import RankEngine
from mockserve.realtime.driver import Driver
from mockserve.realtime.in_flight import InFlightRequest

MOST_RUNNING = 10_000
MOST_KV_FRACTION = 0.99
OUTPUT_TOKENS = 512
"""Tokens of one synthetic request; another follows it."""


@dataclass(slots=True)
class BackgroundLoad:
    """Keeps `num_running` synthetic requests in the engine, and withholds `kv_fraction` of its KV cache."""

    driver: Driver
    engines: Mapping[int, RankEngine]
    num_running: int = 0
    kv_fraction: float = 0.0
    prompt_tokens: int = 1
    _open: dict[str, "_SyntheticRequest"] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def set(self, num_running: int, kv_fraction: float, prompt_tokens: int) -> None:
        """Change the load. Raises EngineError for a KV fraction if the engine cannot reserve blocks."""
        if kv_fraction != self.kv_fraction:

            def reserve(engine: Engine, at: Micros) -> None:
                engine.shrink_cache(int(engine.kv.num_blocks * kv_fraction), at)

            for each in self.engines.values():
                each.driver.call_engine(reserve)
        self.num_running, self.kv_fraction, self.prompt_tokens = num_running, kv_fraction, prompt_tokens
        for request_id in list(self._open)[num_running:]:
            del self._open[request_id]
            self.driver.abort(request_id)
        while len(self._open) < num_running:
            self._add_request()

    def shown(self) -> dict[str, float]:
        """Return the load as JSON fields."""
        return {
            "running": self.num_running,
            "kv_fraction": self.kv_fraction,
            "prompt_tokens": self.prompt_tokens,
            "in_engine": len(self._open),
        }

    def ended(self, request_id: str, *, starts_another: bool) -> None:
        """Replace a synthetic request that has ended."""
        if self._open.pop(request_id, None) is not None and starts_another and len(self._open) < self.num_running:
            asyncio.get_running_loop().call_soon(self._add_if_missing)

    def _add_if_missing(self) -> None:
        if len(self._open) < self.num_running and self.driver.failure is None:
            self._add_request()

    def _add_request(self) -> None:
        request_id = f"background-{next(self._numbers)}"
        request = Request(
            id=request_id,
            input_tokens=self.prompt_tokens,
            output_tokens=OUTPUT_TOKENS,
            blocks=UniqueBlocks(request_id),
            max_output_tokens=OUTPUT_TOKENS,
        )
        flight = self._open[request_id] = _SyntheticRequest(self, request)
        self.driver.submit(flight)


class _SyntheticRequest(InFlightRequest):
    """One synthetic request, whose tokens are ignored."""

    __slots__ = ("_load",)

    finish_reason = "length"

    def __init__(self, load: BackgroundLoad, request: Request) -> None:
        super().__init__(request)
        self._load = load

    def finish(self, num_tokens: int) -> None:
        self._load.ended(self.request.id, starts_another=True)

    def abort(self, num_tokens: int) -> None:
        self._load.ended(self.request.id, starts_another=False)

    def fail(self, message: str, status: int) -> None:
        self._load.ended(self.request.id, starts_another=False)
