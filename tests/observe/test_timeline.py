from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.installation import check_plot
from blis_sim.options import OptionError
from blis_sim.report.figures import draw_panels
from observe.figures import RequestLog
from observe.timeline import Timeline, interval_s, panels_of, timeline_of
from tests.observe.ended_requests import ended
from traces import TraceError


def timeline(*requests: object) -> Timeline:
    log = RequestLog()
    for each in requests:
        log.add(each)  # type: ignore[arg-type]
    return timeline_of(log)


def test_tokens_count_when_they_came_and_requests_when_they_ended() -> None:
    # The run takes 10 s, so an interval is 0.1 or 0.2 s long.
    found = timeline(ended(0, (50, 150, 9_950)), ended(9_900, (20, 30)))
    per_interval = found.output_tokens_per_s * found.width_s
    assert found.width_s == 0.1
    assert (per_interval[0], per_interval[1], per_interval[99], per_interval.sum()) == (1, 1, 3, 5)
    assert found.requests_per_s[99] * found.width_s == 2


def test_gaps_are_within_a_request_never_between_two() -> None:
    found = timeline(ended(0, (10, 20)), ended(0, (1_000,)), ended(0, (), kind="http_500"), ended(0, (1_000, 1_040)))
    known = found.itl_p50_ms[~np.isnan(found.itl_p50_ms)]
    assert known.tolist() == [10, 40]


def test_ttft_stands_where_the_request_was_sent() -> None:
    found = timeline(ended(0, (900, 1_000)), ended(500, (100, 200)))
    place = int(0.5 / found.width_s)
    assert found.ttft_p50_ms[0] == 900
    assert found.ttft_p99_ms[place] == 100


def test_an_answer_that_came_whole_counts_at_its_end() -> None:
    found = timeline(ended(0, (400, 1_000), streaming=False))
    assert found.output_tokens_per_s[-1] * found.width_s == 2
    assert np.isnan(found.itl_p50_ms).all()


@given(st.floats(0, 1e6))
def test_a_run_has_at_most_a_hundred_intervals(duration_s: float) -> None:
    assert duration_s / interval_s(duration_s) < 100


@given(st.lists(st.tuples(st.floats(0, 5_000), st.lists(st.floats(0, 3_000), max_size=5).map(sorted)), min_size=1))
def test_no_token_is_lost(requests: list[tuple[float, list[float]]]) -> None:
    found = timeline(*(ended(sent_ms, token_ms) for sent_ms, token_ms in requests))
    num_tokens = sum(len(token_ms) for _, token_ms in requests)
    assert found.output_tokens_per_s.sum() * found.width_s == pytest.approx(num_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.svg", "run.png", "run.pdf"])
def test_a_picture_is_drawn_and_the_same_every_time(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = timeline(ended(0, (10, 20)), ended(500, ()), ended(100, (), kind="http_500"))
    draw_panels(panels_of(found), str(tmp_path / name))
    content = (tmp_path / name).read_bytes()
    draw_panels(panels_of(found), str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_a_picture_for_which_there_is_no_room_is_one_line(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"run.{suffix}"
    path.symlink_to("/dev/full")
    with pytest.raises(TraceError, match=rf"run\.{suffix}: cannot be written, no space left on device"):
        draw_panels(panels_of(timeline(ended(0, (10, 20)))), str(path))


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--plot must be a file that ends in .png, .svg, .pdf, got run.gif"):
        check_plot("--plot", "run.gif")
    with pytest.raises(OptionError, match="--plot must be in a folder that exists"):
        check_plot("--plot", str(tmp_path / "none" / "run.png"))
