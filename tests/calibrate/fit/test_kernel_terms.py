"""Scales and host overheads of kernels: what they are multiplied by, and that recordings teach them."""

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernel_profiles import read_learned
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.fit.coefficients_file import content, text_of
from calibrate.fit.learn import Budget, learn
from calibrate.fit.recording import Recording
from calibrate.fit.terms import EXPECTED_KERNELS, KERNEL_TERMS, KernelsDeployment
from replay.simulation.simulate import simulate
from tests.calibrate.fit.known_server import CONFIG, arrivals
from tests.engine.latency.kernels.made_up import grids

DEPLOYED = KernelsDeployment(load_model("qwen3-14b"), load_gpu("H100"), 1, grids(), (1, 2, 4, 8, 16, 32, 64))
KNOWN = {
    **{name: each.mean for name, each in EXPECTED_KERNELS.items()},
    "matmul": 1.08, "decode_attention": 0.9, "prompt_attention": 1.1, "step_us": 900.0, "arrival_us": 6000.0,
}  # fmt: skip
VALUES = np.array([KNOWN[name] for name in KERNEL_TERMS.names])
SHAPES = [
    decodes(1, 100),
    decodes(33, 40_000),
    BatchShape(1, 700, 700 * 700, 0, 0, 700 * 700, 12, 9000, 4000),
    BatchShape(2, 3000, 5_000_000, 1000, 1_500_000, 6_500_000),
    BatchShape(1, 20, 400, 5000, 100_000, 100_400, 3, 3000, 50),
    BatchShape(0, 48, 144, 0, 48_048, 48_048, 16, 16_000, 0, 48),
    BatchShape(1, 60, 2000, 7, 90_000, 90_000, 12, 9000, 50, 30),
]


def test_coefficients_times_the_basis_are_step_times() -> None:
    latency = DEPLOYED.latency(VALUES)
    steps_us = DEPLOYED.basis(VALUES, np.array(SHAPES)) @ VALUES[: len(KERNEL_TERMS.step)]
    assert steps_us == pytest.approx([latency.step_time(shape) for shape in SHAPES], abs=1.01)


def test_classes_of_kernels_that_a_model_lacks_are_not_learned() -> None:
    none = grids()
    none.token_us[1] = 0.0
    deployed = KernelsDeployment(DEPLOYED.model, DEPLOYED.gpu, 1, none, ())
    assert set(KERNEL_TERMS.names) - set(deployed.learnable()) == {"experts"}


@pytest.mark.slow
def test_recordings_teach_scales_and_host_overheads() -> None:
    requests = arrivals(240, 3.0)
    engine = Engine(CONFIG, PhaseShifted(DEPLOYED.latency(VALUES), 99), reports_steps=False)
    record = simulate(engine, requests).requests
    ttft_us, e2e_us = record.ttft_us.astype(np.float64), record.e2e_us.astype(np.float64)
    recording = Recording(name="known", arrivals=requests, ttft_us=ttft_us, decode_us=e2e_us - ttft_us)
    learned = learn([recording], DEPLOYED, CONFIG, budget=Budget(240, 240, 720))
    found = DEPLOYED.latency(learned.estimate.values)
    known = DEPLOYED.latency(VALUES)
    for shape in SHAPES[:3]:
        assert found.step_time(shape) == pytest.approx(known.step_time(shape), rel=0.02)
    assert found.queueing_time(500) == pytest.approx(known.queueing_time(500), rel=0.25)
    (score,) = learned.held_out
    assert score.e2e is not None
    assert score.e2e.mape < 0.02
    text = text_of(content(learned, [recording], DEPLOYED, CONFIG, 0))
    assert text.startswith("# Learned by `blis fit`; use with --latency-model kernels --coefficients FILE.\n# scales: ")


def test_the_file_is_read_by_the_latency_model() -> None:
    sections = DEPLOYED.sections(dict(zip(KERNEL_TERMS.names, VALUES.tolist(), strict=True)))
    host, scales = read_learned("a.yaml", {"latency_model": "kernels", **sections})
    assert (scales.matmul, scales.prompt_attention, host.step_us, host.arrival_us) == (1.08, 1.1, 900.0, 6000.0)
