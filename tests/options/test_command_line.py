from dataclasses import dataclass

import pytest

from blis_sim.options import OptionError, option
from blis_sim.options.command_line import values_of_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    size: int = option(1, flags=("--size", "--tensor-parallel-size"))
    rate: float | None = option(None)
    name: str = option("")
    quick: bool = option(False)
    slow: bool = option(True)
    label: tuple[str, ...] = option((), repeatable=True)
    trace: str | None = option(None, positional=True)


def test_a_command_line_is_read_as_settings() -> None:
    line = "--tensor-parallel-size 4 t.yaml --rate=-1 --quick --no-slow --label a,b --label c --name=x=y"
    assert values_of_flags(Options, line.split()) == {
        "size": 4, "rate": -1.0, "quick": True, "slow": False, "label": ("a", "b", "c"), "name": "x=y",
        "trace": "t.yaml",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--loud", "no such option: --loud"),
        ("--rate", "--rate must be given a value"),
        ("a b", "unexpected argument: b"),
        ("--no-size", "no such option: --no-size"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused(line: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        values_of_flags(Options, line.split())
