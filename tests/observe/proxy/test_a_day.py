"""A day of mixed clients through the proxy, in small; `python -m workshop.day` is the whole one."""

import asyncio
from pathlib import Path

import pytest

from tests.patience import attempts
from workshop.day.__main__ import PLAYING, recorded
from workshop.day.clients import MODEL, LoadReplies, load
from workshop.day.processes import judged, running

NUM_REQUESTS, RATE = 36, 30.0
SERVE = ("serve", MODEL, "--port", "0")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadReplies]:
    """The folder of a recording, and its replies.

    Client libraries import parts of themselves at their first requests, so a first load goes to another server.
    Each server is a process of its own, as a client that imports holds up every thread of its process.
    """
    folder = tmp_path_factory.mktemp("day")
    with running(folder, *SERVE) as (_, url):
        asyncio.run(load(url, NUM_REQUESTS, 2 * RATE))
    with running(folder, *SERVE) as (_, url):
        return folder, recorded(folder, url, "day", NUM_REQUESTS, RATE)


def test_a_simulation_predicts_the_replies_of_a_recorded_day(day: tuple[Path, LoadReplies], tmp_path: Path) -> None:
    folder = day[0]
    for _ in attempts():
        found = judged(folder, "day", "--model", MODEL)["metrics"]["e2e"]["request_level"]
        if found["quality"] == "excellent":
            return
        folder = tmp_path
        with running(folder, *SERVE) as (_, url):
            recorded(folder, url, "day", NUM_REQUESTS, RATE)


@pytest.mark.slow
def test_a_recorded_day_says_the_same_when_played_back_at_three_times_the_load(day: tuple[Path, LoadReplies]) -> None:
    with running(day[0], *SERVE, *PLAYING) as (_, url):
        second = asyncio.run(load(url, NUM_REQUESTS, 3 * RATE))
    assert second.words == day[1].words
