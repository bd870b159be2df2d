"""A workload spec as the YAML that reads back as the same spec."""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from blis_sim.options.yaml_text import dump_yaml
from traces.workload.spec import WorkloadSpec


def spec_text(spec: WorkloadSpec) -> str:
    """The YAML of a spec, keys in the order of the format, what has its default left out."""
    return dump_yaml(_plain(spec), indent=4, width=1 << 20)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.metadata.get("from_file", True)]
        there = {field.name: getattr(value, field.name) for field in fields if not _is_default(value, field)}
        return {name: _plain(each) for name, each in there.items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _is_default(part: Any, field: dataclasses.Field[Any]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(part, field.name) == default)
