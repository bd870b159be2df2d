"""No options object exists with a value outside its bounds, and the error names the bound."""

import math
from dataclasses import dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options import BlisError, OptionError, check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One setting for each kind of bound."""

    count: int = option(5, at_least=1, at_most=10)
    fraction: float = option(0.5, above=0, at_most=1)
    limit: int | None = option(None, at_least=1)
    weights: tuple[float, ...] = option((), at_least=0)
    order: str = option("fcfs", choices=("fcfs", "sjf"))
    orders: tuple[str, ...] = option((), choices=("fcfs", "sjf"))
    unbounded: float = option(0.0)
    endless: float = option(1.0, above=0, infinity="max")
    switch: bool = option(False, at_least=1)
    path: str = option("x", positional=True, choices=("x",))

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "--count must be at least 1, got 0"),
        ({"count": 11}, "--count must be at most 10, got 11"),
        ({"fraction": 0.0}, "--fraction must be above 0, got 0.0"),
        ({"fraction": 1.5}, "--fraction must be at most 1, got 1.5"),
        ({"limit": 0}, "--limit must be at least 1, got 0"),
        ({"weights": (1.0, -2.0)}, "--weights must be at least 0, got -2.0"),
        ({"order": "lifo"}, "--order must be one of fcfs, sjf, got 'lifo'"),
        ({"orders": ("sjf", "lifo")}, "--orders must be one of fcfs, sjf, got 'lifo'"),
        ({"unbounded": math.nan}, "--unbounded must be a finite number, got nan"),
        ({"endless": -math.inf}, "--endless must be a finite number, got -inf"),
        ({"endless": math.nan}, "--endless must be a finite number, got nan"),
        ({"unbounded": math.inf}, "--unbounded must be a finite number, got inf"),
        ({"weights": (math.nan,)}, "--weights must be a finite number, got nan"),
        ({"path": "y"}, "PATH must be one of x, got 'y'"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_flag_and_the_bound(given: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        Bounded(**given)  # type: ignore[arg-type]
    assert str(raised.value) == said


@pytest.mark.parametrize("given", [{"count": 1}, {"count": 10}, {"fraction": 1.0}, {"limit": 1}, {"weights": (0.0,)}])
def test_at_least_and_at_most_include_their_limit(given: dict[str, object]) -> None:
    ((name, value),) = given.items()
    assert getattr(Bounded(**given), name) == value  # type: ignore[arg-type]


def test_a_missing_value_is_never_out_of_bounds() -> None:
    assert Bounded(limit=None).limit is None


def test_a_switch_is_not_a_number() -> None:
    assert Bounded(switch=False).switch is False


def test_the_first_setting_of_several_mistakes_is_named() -> None:
    with pytest.raises(OptionError, match="--count"):
        Bounded(order="lifo", fraction=7.0, count=0)


@given(st.integers())
def test_an_integer_is_accepted_exactly_within_its_bounds(value: int) -> None:
    try:
        accepted = Bounded(count=value).count == value
    except OptionError:
        accepted = False
    assert accepted == (1 <= value <= 10)


@given(st.floats())
def test_a_float_is_accepted_exactly_within_its_bounds(value: float) -> None:
    try:
        accepted = Bounded(fraction=value).fraction == value
    except OptionError:
        accepted = False
    assert accepted == (0 < value <= 1)


def test_every_default_is_within_its_own_bounds() -> None:
    assert {field.name: getattr(Bounded(), field.name) for field in fields(Bounded)} == {
        field.name: field.default for field in fields(Bounded)
    }


def test_a_mistake_in_an_option_is_a_mistake_of_the_user() -> None:
    assert issubclass(OptionError, BlisError)
