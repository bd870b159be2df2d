"""The load of five minutes from which all coefficients of a server can be learned."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from blis_sim.engine.core import Engine
from calibrate.fit.design import capacity, design
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES
from tests.fakes import request
from tests.replay.small_traces import row
from traces.workload.generate import generate
from traces.workload.spec import parse_spec, read_spec

SERVER = ("--model", "qwen3-14b", "--hardware", "H100", "--tp", "1")


def test_the_load_has_lone_requests_long_prompts_and_more_than_the_server_bears() -> None:
    workload = generate(parse_spec(design(CONFIG, DEPLOYED.latency(VALUES)), "load.yaml"))
    instants = np.array([each.arrival_us for each in workload.requests]) / 1e6
    inputs = np.array([each.input_tokens for each in workload.requests])
    assert instants.max() < 300
    quiet = instants < 60
    assert 5 < quiet.sum() < 60
    assert inputs.min() < 100
    assert inputs.max() > 4_000
    saturated = (instants >= 210) & (instants < 270)
    mean_tokens = int(inputs[saturated].mean())
    assert saturated.sum() / 60 > 1.2 * capacity(CONFIG, DEPLOYED.latency(VALUES), mean_tokens)


def test_capacity_is_what_a_simulated_server_bears() -> None:
    latency = DEPLOYED.latency(VALUES)
    estimated = capacity(CONFIG, latency, 800)
    due = [Arrival(0, request(f"r{number}", 800, 128), row(number)) for number in range(600)]
    run_us = simulate(Engine(CONFIG, latency, reports_steps=False), due).requests.e2e_us.max()
    assert estimated == pytest.approx(600e6 / run_us, rel=0.15)


def test_short_contexts_get_short_prompts() -> None:
    small = replace(CONFIG, max_model_len=600)
    workload = generate(parse_spec(design(small, DEPLOYED.latency(VALUES)), "load.yaml"))
    assert max(each.input_tokens for each in workload.requests) <= 600 - 129


def test_the_command_writes_a_spec_and_needs_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "load.yaml"
    assert run(["fit", *SERVER, "--design", str(file)]) == 0
    assert capsys.readouterr().err.endswith(f"blis fit: wrote {file}\n")
    assert len(read_spec(file).clients) == 5
