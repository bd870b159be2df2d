"""Pauses of users, as a distribution describes them."""

import math
from itertools import islice
from random import Random
from statistics import fmean, stdev

import pytest

from blis_sim.options import OptionError
from traces.load import parse_think_time


def drawn(text: str, count: int = 2000) -> list[int]:
    return list(islice(parse_think_time(text).draws(Random(5)), count))


@pytest.mark.parametrize(
    ("text", "pause_us"),
    [("constant:value=500ms", 500_000), ("constant:value=1.5s", 1_500_000), ("constant:value=20", 20_000),
     ("constant:value=7us", 7), ("constant:value=0", 0)],
)  # fmt: skip
def test_a_constant_pause_has_a_unit_or_is_in_milliseconds(text: str, pause_us: int) -> None:
    assert set(drawn(text, 10)) == {pause_us}


def test_logarithms_of_seconds_are_distributed_normally() -> None:
    logarithms = [math.log(each / 1e6) for each in drawn("lognormal:mu=0.5,sigma=0.6")]
    assert fmean(logarithms) == pytest.approx(0.5, abs=0.05)
    assert stdev(logarithms) == pytest.approx(0.6, abs=0.05)


def test_bounds_cut_off_what_is_drawn() -> None:
    found = drawn("lognormal:mu=2.0,sigma=1,min=3s,max=30s")
    assert (min(found), max(found)) == (3_000_000, 30_000_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gamma:a=1", "must be constant:value=500ms or lognormal"),
        ("constant", "got '' in 'constant'"),
        ("constant:value=soon", "value must be a number, got 'soon'"),
        ("constant:value=-1s", "value must be at least 0"),
        ("lognormal:mu=1", "lognormal needs sigma"),
        ("lognormal:mu=1,sigma=0", "sigma must be above 0, got 0"),
        ("lognormal:mu=1,sigma=1,mu=2", "names mu twice"),
        ("lognormal:mu=1,sigma=1,min=3s,max=1s", "min must be at most max, got 3s and 1s"),
        ("lognormal:mu=nan,sigma=1", "mu must be a number"),
        ("lognormal:mu=1,sigma=1,mean=2", "got 'mean=2'"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=r"^--think-time-dist") as error:
        parse_think_time(text)
    assert problem in str(error.value)
