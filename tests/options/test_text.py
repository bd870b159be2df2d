from dataclasses import dataclass
from typing import Any

import pytest

from blis_sim.options import OptionError, check_options, option
from blis_sim.options.option import find_setting, parse_value, parse_yaml_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    size: int = option(1, flags=("--size", "--tensor-parallel-size"))
    rate: float | None = option(None)
    name: str = option("")
    quick: bool = option(False)
    slow: bool = option(True)
    weights: tuple[float, ...] = option(())
    label: tuple[str, ...] = option((), repeatable=True)
    trace: str | None = option(None, positional=True)

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("size", "3", 3),
        ("rate", "0.5", 0.5),
        ("rate", "none", None),
        ("name", "none", "none"),
        ("quick", "true", True),
        ("quick", "Off", False),
        ("quick", "NO", False),
        ("slow", "yes", True),
        ("weights", "1,2.5", (1.0, 2.5)),
        ("weights", "[1, 2]", (1.0, 2.0)),
    ],
)
def test_a_text_becomes_what_the_setting_holds(name: str, text: str, value: Any) -> None:
    assert parse_value(find_setting(Options, name), text) == value


@pytest.mark.parametrize(("name", "value"), [("size", 3), ("rate", None), ("quick", True), ("weights", [1.0, 2.0])])
def test_values_of_yaml_keep_their_meaning(name: str, value: Any) -> None:
    expected = tuple(value) if isinstance(value, list) else value
    assert parse_yaml_value(find_setting(Options, name), value) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("size", "2.5", "--size must be a whole number, got '2.5'"),
        ("rate", "fast", "--rate must be a number, got 'fast'"),
        ("quick", "maybe", "--quick must be true or false, got 'maybe'"),
        ("weights", "a,b", "--weights must be a list, comma-separated or in JSON, got 'a,b'"),
    ],
)
def test_a_text_that_means_nothing_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_value(find_setting(Options, name), text)


@pytest.mark.parametrize("name", ["size", "name", "quick", "weights", "label"])
def test_no_value_is_named_where_a_setting_must_have_one(name: str) -> None:
    with pytest.raises(OptionError, match=f"^--{name} must be given a value$"):
        parse_yaml_value(find_setting(Options, name), None)


@pytest.mark.parametrize("name", ["size", "--size", "tensor_parallel_size", "tensor-parallel-size"])
def test_a_setting_is_found_by_its_name_and_its_flags(name: str) -> None:
    assert find_setting(Options, name).name == "size"
    with pytest.raises(OptionError, match="no setting is called 'colour'"):
        find_setting(Options, "colour")
