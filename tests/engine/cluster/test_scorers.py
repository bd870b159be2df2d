"""Scores of candidates."""

import pytest

from blis_sim.engine.cluster.scorers import SCORERS, Scorer, ScorerSettings
from blis_sim.engine.cluster.weights import checked_weights, parse_weights
from blis_sim.engine.errors import EngineError
from tests.engine.cluster.small_clusters import cluster, run_out, sharing, snapshot, state
from tests.fakes import config, request

REQUEST = request()


def scorer(name: str) -> Scorer:
    return SCORERS[name](ScorerSettings(block_size_tokens=4))


@pytest.mark.parametrize(
    ("name", "loads", "expected"),
    [
        ("queue-depth", [(0, 9, 9), (1, 0, 0), (2, 0, 0)], [1, 0.5, 0]),
        ("effective-load", [(0, 1, 1), (1, 1, 10), (0, 0, 0)], [1 - 2 / 12, 0, 1]),
        ("load-balance", [(0, 1, 1), (1, 1, 10), (0, 0, 0)], [1 / 3, 1 / 13, 1]),
        ("active-requests", [(9, 9, 1), (0, 0, 8), (0, 0, 0)], [7 / 8, 0, 1]),
        ("running-requests", [(0, 1, 0), (0, 3, 0), (9, 2, 9)], [1, 0, 0.5]),
        ("load-aware", [(0, 9, 9), (1, 0, 0), (200, 0, 0)], [0.5, 0.5 * 127 / 128, 0]),
        ("vllm-dp", [(0, 1, 9), (1, 1, 9), (2, 0, 9)], [1, 3 / 7, 0]),
    ],
)
def test_scores_by_load(name: str, loads: list[tuple[int, int, int]], expected: list[float]) -> None:
    """Loads are requests waiting, running and in flight."""
    candidates = [snapshot(number, *each) for number, each in enumerate(loads)]
    assert scorer(name).score(REQUEST, state(*candidates)) == pytest.approx(expected)


def test_scores_of_equals_are_all_the_best() -> None:
    candidates = [snapshot(0, waiting=3), snapshot(1, waiting=3)]
    assert scorer("queue-depth").score(REQUEST, state(*candidates)) == [1, 1]


def test_a_fuller_kv_cache_scores_less() -> None:
    assert scorer("kv-utilization").score(REQUEST, state(snapshot(kv=0.25), snapshot(1, kv=1))) == [0.75, 0]


@pytest.mark.parametrize(("adapter", "expected"), [("sql", [1, 0]), ("unheard-of", [1, 1]), ("", [1, 1])])
def test_an_adapter_in_use_attracts_requests_that_need_it(adapter: str, expected: list[float]) -> None:
    asked = REQUEST._replace(adapter=adapter)
    assert scorer("lora-affinity").score(asked, state(snapshot(adapter="sql"), snapshot(1, adapter="law"))) == expected


def test_prefix_affinity_routes_to_where_beginnings_were_sent() -> None:
    affinity, seen = scorer("prefix-affinity"), state(snapshot(0), snapshot(1))
    assert affinity.score(sharing("a", "g", 5), seen) == [0, 0]
    affinity.routed(sharing("a", "g", 5), 1, seen)
    assert affinity.score(sharing("b", "g", 5), seen) == [0, 5 / 10]
    assert affinity.score(sharing("c", "other", 5), seen) == [0, 0]


def test_prompts_that_differ_behind_256_blocks_have_the_same_prefix_for_the_endpoint_picker() -> None:
    seen = state(snapshot(0), snapshot(1))
    first, second = (sharing(name, "g", 300, 1600) for name in "ab")
    by_all, by_picker = scorer("prefix-affinity"), scorer("prefix-cache")
    for each in (by_all, by_picker):
        each.routed(first, 1, seen)
    assert by_all.score(second, seen) == [0, 300 / 400]
    assert by_picker.score(second, seen) == [0, 1]


@pytest.mark.parametrize(("name", "most"), [("prefix-affinity", 10_000), ("prefix-cache", config().total_kv_blocks)])
def test_the_endpoint_picker_remembers_as_many_blocks_as_the_instance_caches(name: str, most: int) -> None:
    affinity, seen, size = scorer(name), state(snapshot()), 25
    for number in range(most // size + 1):
        affinity.routed(sharing(f"r{number}", f"g{number}", size, 4 * size), 0, seen)
    assert affinity.score(sharing("a", "g1", size, 4 * size), seen) == [1]
    assert affinity.score(sharing("a", "g0", size, 4 * size), seen) == [0]


def test_a_prompt_of_less_than_a_block_has_no_affinity() -> None:
    assert scorer("prefix-affinity").score(sharing("a", "g", 0, input_tokens=3), state(snapshot())) == [0]


def test_a_precise_prefix_cache_looks_into_the_caches() -> None:
    served = cluster(2)
    served.submit(sharing("a", "g", 5), 0)
    run_out(served)
    served.refresh_snapshots(9_000)
    assert scorer("precise-prefix-cache").score(sharing("b", "g", 5), served.state) == [1, 0]
    assert scorer("precise-prefix-cache").score(sharing("b", "h", 5), served.state) == [1, 1]


def test_prompts_in_no_cache_go_around() -> None:
    lru, seen = scorer("no-hit-lru"), state(snapshot(0), snapshot(1), snapshot(2))
    assert lru.score(REQUEST, seen) == [1, 0.5, 0]
    lru.routed(REQUEST, 0, seen)
    assert lru.score(REQUEST, seen) == [0, 1, 0.5]
    lru.routed(REQUEST, 1, seen)
    assert lru.score(REQUEST, seen) == [0.5, 0, 1]


def test_prompts_in_a_cache_change_no_order() -> None:
    served, lru = cluster(2), scorer("no-hit-lru")
    served.submit(sharing("a", "g", 5), 0)
    run_out(served)
    served.refresh_snapshots(9_000)
    assert lru.score(sharing("b", "g", 5), served.state) == [0.5, 0.5]
    lru.routed(sharing("b", "g", 5), 0, served.state)
    assert lru.score(REQUEST, served.state) == [1, 0]


def test_weights_are_read_in_order() -> None:
    assert parse_weights("queue-depth:2, prefix-affinity:0.5", "x") == (("queue-depth", 2.0), ("prefix-affinity", 0.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queue-depth", "--x must be name:weight"),
        ("queue-depth:much", "--x must be name:weight"),
        (":1", "--x must be name:weight"),
        ("rocket:1", "--x must name scorers of precise-prefix-cache, .* got 'rocket'"),
        ("queue-depth:1,queue-depth:2", "--x names queue-depth twice"),
        ("queue-depth:0", "--x must give queue-depth a weight above 0 up to 1e.09, got 0"),
        ("queue-depth:1e308", "--x must give queue-depth a weight above 0 up to 1e.09, got 1e.308"),
        ("queue-depth:inf", "--x must give queue-depth a weight above 0 up to 1e.09, got inf"),
    ],
)
def test_invalid_weights_of_scorers_are_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parse_weights(text, "--x")


def test_empty_text_has_no_weights() -> None:
    assert checked_weights([], "x") == ()
