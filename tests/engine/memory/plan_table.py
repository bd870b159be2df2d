"""The table of memory plans beside this file, and how a plan is compared with one of vLLM's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, plan_layout

KV_BYTES = 120 * 2**30
TABLE = Path(__file__).with_name("plans.yaml")


@dataclass(frozen=True, slots=True)
class Expected:
    """One plan of vLLM."""

    model: str
    tp: int
    pp: int
    weight_bytes: list[int]
    groups: list[list[Any]]
    num_blocks: int
    capacity_tokens: int
    hit_tokens: int
    hash_tokens: int


def expected_plans() -> Iterator[Expected]:
    """Yield the plans of the table."""
    for row in _table()["plans"]:
        yield Expected(**row)


def request_for(model: str, **changes: Any) -> PlanRequest:
    """Return the request for a model of the table on GPUs like an H100, with requests of 16,384 tokens."""
    entry = _table()["models"][model]
    values: dict[str, Any] = {"max_model_len": 16384, "capability_major": 9, **changes}
    return PlanRequest(
        config=_spelled_out(entry["config"]), model=model, hf_quant_config=entry.get("hf_quant_config"), **values
    )


def layout_of(model: str, **changes: Any) -> MemoryLayout:
    """Return the plan of a model of the table."""
    return plan_layout(request_for(model, **changes))


def groups_of(layout: MemoryLayout) -> list[list[Any]]:
    """Return the groups of the first stage as kind, layers, tokens of a block and bytes of a page."""
    groups = layout.groups_of_stage(layout.stages[0])
    return [[group.kind, len(group.specs), group.block_tokens, group.page_bytes] for group in groups]


def _table() -> Any:
    return yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def _spelled_out(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "repeat" in value:
            return [*value.get("first", []), *value["repeat"] * value["times"]]
        return {key: _spelled_out(each) for key, each in value.items()}
    return value
