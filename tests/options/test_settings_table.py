"""A settings table is the fields of a dataclass, with the information for the command line and the documentation."""

import dataclasses
from dataclasses import dataclass

import pytest

from blis_sim.options import OptionError, check_options, option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Settings that every command shares."""

    model: str = option(help="Which model.")
    max_num_seqs: int = option(256, "Requests in a step.", at_least=1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Parent):
    """One command's own settings on top."""

    trace: str | None = option(None, "Which trace.", positional=True, metavar="TRACE")
    tp: int = option(1, "GPUs.", flags=("--tp", "--tensor-parallel-size"))
    derived: int = 7


def test_settings_come_in_the_order_they_are_declared_parents_first() -> None:
    assert [setting.name for setting in options_of(Child)] == ["model", "max_num_seqs", "trace", "tp"]


def test_a_field_that_is_no_option_is_no_setting() -> None:
    assert "derived" not in [setting.name for setting in options_of(Child)]


def test_a_setting_without_a_default_is_required() -> None:
    assert {setting.name for setting in options_of(Child) if setting.required} == {"model"}


def test_leaving_out_a_required_setting_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="model"):
        Child()


def test_none_is_a_default_like_any_other() -> None:
    (trace,) = [setting for setting in options_of(Child) if setting.name == "trace"]
    assert (trace.required, trace.default) == (False, None)


def test_a_setting_has_its_type() -> None:
    assert {setting.name: setting.type for setting in options_of(Child)} == {
        "model": str,
        "max_num_seqs": int,
        "trace": str | None,
        "tp": int,
    }


def test_a_name_becomes_a_flag_with_dashes() -> None:
    flags = {setting.name: setting.flags for setting in options_of(Child)}
    assert flags["max_num_seqs"] == ("--max-num-seqs",)


def test_given_flags_take_the_place_of_the_name() -> None:
    flags = {setting.name: setting.flags for setting in options_of(Child)}
    assert flags["tp"] == ("--tp", "--tensor-parallel-size")


def test_errors_name_a_flag_by_its_first_spelling_and_an_argument_by_its_bare_name() -> None:
    labels = {setting.name: setting.label for setting in options_of(Child)}
    assert (labels["tp"], labels["trace"]) == ("--tp", "TRACE")


def test_a_child_inherits_the_bounds_of_its_parent() -> None:
    with pytest.raises(OptionError, match="--max-num-seqs must be at least 1, got 0"):
        Child(model="m", max_num_seqs=0)


def test_options_cannot_be_changed_once_they_are_checked() -> None:
    options = Child(model="m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.tp = 2  # type: ignore[misc]
