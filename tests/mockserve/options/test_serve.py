"""The settings of `blis serve`."""

import math

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.options.serve import ServeOptions


def test_the_model_is_an_argument_or_a_flag() -> None:
    assert options_from(ServeOptions, model_argument="Org/Model").deployment.model == "Org/Model"
    assert options_from(ServeOptions, model="Org/Model").model_names == ("Org/Model",)
    assert options_from(ServeOptions, model="a", model_argument="a").deployment.model == "a"


def test_two_different_models_are_refused() -> None:
    with pytest.raises(OptionError, match="MODEL and --model must agree, got 'b' and 'a'"):
        options_from(ServeOptions, model="a", model_argument="b")


def test_a_model_is_needed() -> None:
    with pytest.raises(OptionError, match="MODEL must be given"):
        options_from(ServeOptions)


def test_served_names_replace_that_of_the_model() -> None:
    assert options_from(ServeOptions, model="a", served_model_name=("x", "y")).model_names == ("x", "y")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"speed": 0.0}, "--speed must be above 0, got 0.0"),
        ({"speed": math.inf, "dp": 2}, "--speed max works with one engine: no --data-parallel-size"),
        ({"port": 70_000}, "--port must be at most 65535, got 70000"),
        ({"default_output_tokens": 0}, "--default-output-tokens must be at least 1, got 0"),
    ],
)
def test_values_out_of_bounds_are_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        options_from(ServeOptions, model="a", **settings)
