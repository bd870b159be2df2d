"""Settings that were given although another one, which was not, would have to be for them to matter."""

from collections.abc import Iterator, Mapping
from typing import Any

from blis_sim.options.option import options_of


def in_vain(options: Any, missing: Mapping[str, str]) -> Iterator[str]:
    """A note for the user on each setting that is not as by default; `missing` has their names and what they lack."""
    for setting in options_of(type(options)) if missing else ():
        if setting.name in missing and setting.of(options) != setting.default:
            yield f"{setting.label} has no effect without {missing[setting.name]}"
