"""The table of vLLM's flags: spellings, how the value is written, how many there may be, what it is about."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "flags.csv"

SWITCHES = ("pair", "switch")
"""Kinds without a value: with and without an opposite spelling."""

_OPPOSITES = (("--enable-", "--disable-"), ("--disable-", "--enable-"))


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One flag of `vllm serve`.

    `kind` is a key of `values.CHECKS` or one of `SWITCHES`; `number` is `+` for one or several values, `?` for none or
    one, `append` for a flag that may be repeated, else empty.
    """

    spellings: tuple[str, ...]
    kind: str
    number: str
    choices: tuple[str, ...]
    about: str

    @property
    def name(self) -> str:
        """The preferred spelling."""
        return self.spellings[0]

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.kind in SWITCHES

    @property
    def opposites(self) -> tuple[str, ...]:
        """The spellings that turn it off."""
        if self.kind != "pair":
            return ()
        long_ones = [spelling for spelling in self.spellings if spelling.startswith("--")]
        found = [f"--no-{spelling.removeprefix('--')}" for spelling in long_ones]
        for spelling in long_ones:
            found += [other + spelling.removeprefix(own) for own, other in _OPPOSITES if spelling.startswith(own)]
        return tuple(found)


def read_table(path: Path = TABLE) -> Mapping[str, VllmFlag]:
    """Every flag under each of its spellings, opposites included. Cost: about 1 ms."""
    with path.open(encoding="utf-8", newline="") as file:
        flags = [
            VllmFlag(
                spellings=tuple(row["flags"].split()),
                kind=row["value"],
                number=row["number"],
                choices=tuple(row["choices"].split()),
                about=row["about"],
            )
            for row in csv.DictReader(file)
        ]
    return {spelling: flag for flag in flags for spelling in (*flag.spellings, *flag.opposites)}
