"""A day of mixed clients through the proxy, in small; `python -m benchmarks.day` is the whole one."""

import asyncio
from pathlib import Path

from benchmarks.day.__main__ import RECORDING
from benchmarks.day.clients import MODEL, load
from benchmarks.day.processes import judged
from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.options.serve import ServeOptions
from tests.observe.proxy.running import running_proxy
from tests.wire.serving import running_server


def test_a_recorded_day_is_predicted_and_says_the_same_when_played_back_at_three_times_the_load(tmp_path: Path) -> None:
    latency = deployment_of(options_from(ServeOptions, model=MODEL)).latency
    settings = {"served_model_name": (MODEL,), "speed": 1.0, "max_model_len": None}
    with (
        running_server(latency, **settings) as server,
        running_proxy(server.url, tmp_path / "day", *RECORDING) as proxy,
    ):
        first = asyncio.run(load(proxy.url, 36, 30.0))
        proxy.stop()
    playing = {"playback": str(tmp_path / "day.content.jsonl"), "playback_miss": "error"}
    with running_server(latency, **settings, **playing) as server:
        second = asyncio.run(load(server.url, 36, 90.0))
    assert second.words == first.words
    assert proxy.summary["by_status"] == {"ok": 36}
    found = judged(tmp_path, "day", "--model", MODEL)["metrics"]["e2e"]["request_level"]
    assert found["quality"] in ("excellent", "good"), found
