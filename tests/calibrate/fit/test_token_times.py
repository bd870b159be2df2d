"""Token times improve learning from a server whose latency model is known."""

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.fitted import STEP_TERMS
from calibrate.fit.estimate import recorded
from calibrate.fit.learn import Budget, learn
from calibrate.fit.recording import Recording
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES, recording
from tests.calibrate.fit.known_server_tokens import Chunks, token_times, with_token_times

STALL_US = 250_000
SMALL = Budget(per_round=200, per_final_round=200, in_final_rounds=1_000)


def step_times(values: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    times: np.ndarray = DEPLOYED.basis(values, shapes) @ values[: len(STEP_TERMS)]
    return times


@pytest.fixture(scope="module")
def shapes() -> np.ndarray:
    """Steps with prompts, of another recording."""
    every, _ = recorded(recording(1500, rate=4.0, seed=77), CONFIG, DEPLOYED.latency(VALUES))
    return every[every[:, BatchShape._fields.index("prefill_tokens")] > 0]


def learned(from_recording: Recording) -> np.ndarray:
    values: np.ndarray = learn([from_recording], DEPLOYED, CONFIG, budget=SMALL).estimate.values
    return values


@pytest.mark.slow
def test_a_short_recording_with_token_times_determines_steps_better_than_one_without(shapes: np.ndarray) -> None:
    known = step_times(VALUES, shapes)
    errors: dict[str, list[float]] = {"with": [], "without": []}
    for seed in range(4):
        plain = recording(200, rate=4.0, seed=seed)
        reported = with_token_times(plain, token_times(plain.arrivals))
        for name, each in (("without", plain), ("with", reported)):
            errors[name].append(float(np.sqrt(np.mean((step_times(learned(each), shapes) / known - 1) ** 2))))
    assert np.mean(errors["with"]) < 0.75 * np.mean(errors["without"])


@pytest.mark.slow
def test_clients_that_stall_do_not_disturb(shapes: np.ndarray) -> None:
    plain = recording(200, rate=4.0)
    chunks = token_times(plain.arrivals)
    calm, stalled = (learned(with_token_times(plain, each)) for each in (chunks, with_stalls(chunks)))
    assert step_times(stalled, shapes) == pytest.approx(step_times(calm, shapes), rel=0.01)


def with_stalls(chunks: Chunks) -> Chunks:
    """Every tenth stream stalls once, and all of them three times."""
    some = {number: times[len(times) // 2] for number, times in chunks.items() if number % 10 == 0}
    everyone = np.quantile(np.concatenate([np.array(each) for each in chunks.values()]), [0.2, 0.5, 0.7]).astype(int)
    return {
        number: [_late(time, [*everyone.tolist(), some.get(number, -STALL_US)]) for time in times]
        for number, times in chunks.items()
    }


def _late(time_us: int, stalls_us: list[int]) -> int:
    return max([time_us, *(each + STALL_US for each in stalls_us if each < time_us < each + STALL_US)])
