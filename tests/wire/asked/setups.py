"""Pairs of servers, ours and the genuine one, and their requests, which are in `cases_*.py`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `said` is the output of the genuine server's model, over and over; ours makes up its own words."""

    name: str
    path: str
    body: Mapping[str, Any] | None = None
    method: str = "POST"
    said: str = "a"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setup:
    """One pair of servers. `settings` are those of `blis serve`; vLLM's flags have their names."""

    name: str
    cases: Callable[[], Sequence[Asked]]
    folder: str = "usual"
    settings: Mapping[str, Any] = field(default_factory=dict)
    own_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that only our server has."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def flags(self, folders: str) -> list[str]:
        """The settings as flags; `{folders}` in a value is where the model folders are."""
        found: list[str] = []
        for name, value in self.settings.items():
            found.append(f"--{name.replace('_', '-')}")
            if value is not True:
                found.append(str(value).replace(FOLDERS_MARK, folders))
        return found


FOLDERS_MARK = "{folders}"


def as_json(**members: Any) -> str:
    """The value of a flag that takes an object."""
    return json.dumps(members)
