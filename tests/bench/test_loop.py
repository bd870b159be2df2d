"""`blis loop`: one command that sends a load, records it, replays the recording and grades the replay."""

from pathlib import Path
from typing import Any

import pytest

import blis_sim
from blis_sim.bench.loop_command import LoopOptions, rewritten
from blis_sim.cli.main import run
from blis_sim.options import OptionError, options_from
from tests.patience import attempts


def test_flags_of_the_load_and_of_the_replay_are_told_apart() -> None:
    words = rewritten(["--url", "localhost:1", "--hardware", "H200", "--rate", "5", "--fail-over", "e2e=5"])
    assert words[:4] == ["--replay-flag", "--hardware", "--replay-flag", "H200"]
    assert words[words.index("--num-requests") + 1] == "150"
    assert sorted(words[-6:]) == sorted(["--url", "localhost:1", "--rate", "5", "--fail-over", "e2e=5"])


@pytest.mark.parametrize("more", [{"find_knee": True, "goodput": ("e2e:1s",)}, {"until_within": 0.1}])
def test_a_load_with_several_recordings_is_not_looped(more: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="makes several recordings, and blis loop replays one"):
        options_from(LoopOptions, url="http://x:1", rate=1.0, num_requests=5, output="o", **more)


def test_a_proxy_has_no_load_to_loop() -> None:
    from observe.options import ProxyOptions

    with pytest.raises(OptionError, match="use blis observe"):
        LoopOptions(url="http://x:1", output="o", proxying=ProxyOptions(proxy=(8001,)))


@pytest.mark.slow
def test_a_server_of_ours_grades_excellent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with blis_sim.server("qwen/qwen3-14b", speed=0.1) as server:  # a busy machine's delays are a tenth of it
        load = ["--rate", "2", "--num-requests", "12", "--output-tokens", "16"]
        for _ in attempts():
            if run(["loop", "--url", server.url, *load, "--fail-over", "e2e=5,itl=5"]) == 0:
                break
            capfd.readouterr()
    out, _ = capfd.readouterr()
    grades = {line.split()[0]: line.split() for line in out.splitlines() if " excellent " in line}
    assert {"E2E", "ITL"} <= set(grades)
    assert Path("blis-trace.calibration.html").is_file()
