"""Instances of 1000 tokens, of which 800 count as capacity; the cheap ones have 500, of which 400 count."""

import pytest

from blis_sim.engine.cluster.autoscaling.analyzers import ANALYZERS, Thresholds
from blis_sim.engine.cluster.autoscaling.figures import Change, Figures, Need, ReplicaFigures, VariantFigures
from blis_sim.engine.cluster.autoscaling.pipeline import AutoscalerSettings, Pipeline
from blis_sim.engine.cluster.autoscaling.stabilizer import Windows
from blis_sim.engine.errors import EngineError

DEAR, CHEAP = VariantFigures("dear", 1000, 8.0), VariantFigures("cheap", 500, 3.0)


def figures(in_use: list[int], num_waiting: int = 0, num_pending: int = 0) -> Figures:
    replicas = [ReplicaFigures(index, "dear", 1000, tokens, num_waiting) for index, tokens in enumerate(in_use)]
    return Figures(replicas, [VariantFigures("dear", 1000, 8.0, num_pending), CHEAP])


def pipeline(scale_up_us: int = 0, scale_down_us: int = 0) -> Pipeline:
    return Pipeline(
        AutoscalerSettings(interval_us=1000, windows=Windows(scale_up_us=scale_up_us, scale_down_us=scale_down_us))
    )


@pytest.mark.parametrize(
    ("seen", "need"),
    [
        (figures([640]), Need()),
        (figures([640], num_waiting=1), Need(missing_tokens=640.0)),
        (figures([640], num_waiting=1, num_pending=1), Need()),
        (figures([0]), Need()),
        (figures([160, 160]), Need()),
        (figures([100, 100]), Need(spare_tokens=1100.0)),
    ],
)
def test_need_follows_from_tokens_held_and_expected(seen: Figures, need: Need) -> None:
    found = ANALYZERS["kv-tokens"](seen, Thresholds())
    assert (found.missing_tokens, found.spare_tokens) == pytest.approx((need.missing_tokens, need.spare_tokens))


def test_more_are_of_the_cheapest_kind_and_fewer_of_the_dearest() -> None:
    assert pipeline().decide(figures([640], num_waiting=1), 0) == Change("cheap", 2)
    assert pipeline().decide(figures([0, 0, 0]), 0) == Change("dear", -2)


def test_the_last_instance_stays() -> None:
    assert pipeline().decide(figures([0, 0]), 0) == Change("dear", -1)
    assert pipeline().decide(figures([0]), 0) is None


def test_a_wish_must_last_for_its_window_and_then_waits_anew() -> None:
    each = pipeline(scale_up_us=2000)
    wanted, enough = figures([640], num_waiting=1), figures([640])
    acted = [each.decide(seen, at) is not None for at, seen in ((0, wanted), (1000, wanted), (2000, wanted))]
    assert acted == [False, False, True]
    acted = [each.decide(seen, at) is not None for at, seen in ((3000, wanted), (4000, enough), (5000, wanted))]
    assert acted == [False, False, False]
    assert each.decide(wanted, 7000) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_us": 0}, "interval_us of the autoscaler must be at least 1, got 0"),
        ({"interval_us": 1, "analyzer": "tea-leaves"}, "must be one of kv-tokens, got 'tea-leaves'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int | str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        AutoscalerSettings(**settings)  # type: ignore[arg-type]


def test_thresholds_that_would_go_to_and_fro_are_refused() -> None:
    with pytest.raises(EngineError, match="scale_down must be below scale_up"):
        Thresholds(scale_up=0.4, scale_down=0.4)
