"""A day of mixed clients through the proxy, in small; `python -m workshop.day` is the whole one."""

import re

import pytest

from tests.patience import attempts
from workshop.day.__main__ import main

NUM_REQUESTS, RATE = 36, 30.0


@pytest.mark.slow
def test_a_simulation_predicts_a_recorded_day_which_says_the_same_when_played_back_at_three_times_the_load(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    for _ in attempts(seen):
        folder = str(tmp_path_factory.mktemp("day"))
        words = ["workshop.day", "--requests", str(NUM_REQUESTS), "--rate", str(RATE), "--folder", folder]
        monkeypatch.setattr("sys.argv", words)
        main()
        seen.append(capsys.readouterr().out)
        assert f"played back: {NUM_REQUESTS} of {NUM_REQUESTS} replies say the same" in seen[-1]
        assert "kill -9: " in seen[-1]
        if re.search("recording: E2E .*excellent", seen[-1]):
            return
