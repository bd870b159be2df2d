"""Targets per class, as flags give them."""

import pytest

from blis_sim.options import OptionError
from traces import SloTargets, parse_duration_ms, slo_targets


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("100ms", 100),
        ("1.5s", 1500),
        ("2m", 120_000),
        ("1m30s", 90_000),
        ("250us", 0.25),
        ("250µs", 0.25),
        (".5h", 1.8e6),
    ],
)
def test_durations_have_units(text: str, milliseconds: float) -> None:
    assert parse_duration_ms(text) == pytest.approx(milliseconds)


@pytest.mark.parametrize("text", ["100", "", "ms", "1 s", "-1s", "1.2.3s", "1x", "1s2"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)


def test_the_three_flags_of_blis_make_one_table() -> None:
    targets = slo_targets((), "default=100ms, batch=2s", "default=13ms", "")
    assert targets == {"batch": SloTargets(ttft_ms=2000), "default": SloTargets(ttft_ms=100, itl_ms=13)}
    assert slo_targets((), "", "", "") == {}


@pytest.mark.parametrize("text", ["default", "default=100", "default=0ms", "=5ms", "a=1s,,b=2s", "a=-1s"])
def test_a_bad_flag_is_named(text: str) -> None:
    with pytest.raises(OptionError, match=r"--slo-itl must be class=duration\[,class=duration\] such as default=100ms"):
        slo_targets((), "", text, "")


def test_a_class_is_named_once() -> None:
    with pytest.raises(OptionError, match="--slo-e2e names the class 'a' twice"):
        slo_targets((), "", "", "a=1s,a=2s")


def test_limits_are_written_by_latency_and_class() -> None:
    targets = slo_targets(("ttft:500ms", " tpot:40ms", "batch/e2e:1m30s", "batch/ttft:2s"))
    assert targets == {
        "batch": SloTargets(ttft_ms=2000, e2e_ms=90_000),
        "default": SloTargets(ttft_ms=500, itl_ms=40),
    }
    assert targets == slo_targets((), "default=500ms,batch=2s", "default=40ms", "batch=1m30s")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (("ttft",), r"must be \[CLASS/\]NAME:DURATION with a name of ttft, itl, e2e, such as ttft:1s, got 'ttft'"),
        (("ttlt:1s",), "got 'ttlt:1s'"),
        (("ttft:100",), "--goodput ttft must be a duration such as 40ms or 1s, got '100'"),
        (("a/itl:0ms",), "--goodput a/itl must be above 0, got '0ms'"),
        (("itl:1s", "tpot:2s"), "--goodput names tpot twice"),
    ],
)
def test_a_limit_that_cannot_be_read_is_named(limits: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        slo_targets(limits)


def test_the_two_spellings_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="--goodput and --slo-ttft, --slo-itl or --slo-e2e exclude each other"):
        slo_targets(("ttft:1s",), "default=1s")
