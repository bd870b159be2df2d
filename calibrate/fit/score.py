"""How well step times predict a recording."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.compare import Comparison, compare
from calibrate.fit.recording import Recording
from replay.output.phases import averaged
from replay.simulation.record import Record

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """Measured against predicted latencies of the requests that have both; `itl` None if no output has two tokens."""

    name: str
    num_requests: int
    ttft: Comparison
    e2e: Comparison
    itl: Comparison | None


def score(recording: Recording, latency: LatencyModel, config: EngineConfig, num_phases: int) -> Score | None:
    """Replay and compare; None where nothing can be compared."""
    runs = []
    for phase in range(num_phases):
        engine = Engine(config, PhaseShifted(latency, phase), reports_steps=False)
        runs.append(recording.simulated(engine))
    predicted = _predicted(recording, averaged(runs))
    e2e_us = recording.ttft_us + np.nan_to_num(recording.decode_us)
    known = np.isfinite(recording.ttft_us) & np.isfinite(predicted).all(axis=1)
    if not known.any():
        return None
    gaps = np.array([max(arrival.request.output_tokens - 1, 1) for arrival in recording.arrivals])
    has_gaps = known & np.isfinite(recording.decode_us)
    itl = None
    if has_gaps.any():
        itl = compare((recording.decode_us / gaps)[has_gaps], predicted[has_gaps, 2])
    return Score(
        name=recording.name,
        num_requests=int(known.sum()),
        ttft=compare(recording.ttft_us[known], predicted[known, 0]),
        e2e=compare(e2e_us[known], predicted[known, 1]),
        itl=itl,
    )


def _predicted(recording: Recording, record: Record) -> Floats:
    """TTFT, E2E and mean ITL of each request in the order of the recording; nan for those that did not complete."""
    place_of = {request_id: place for place, request_id in enumerate(record.ids)}
    places = [place_of[arrival.request.id] for arrival in recording.arrivals]
    columns = np.column_stack([record.ttft_us, record.e2e_us, record.itl_mean_us])
    predicted: Floats = np.where(record.is_completed[:, None], columns, np.nan)[places]
    return predicted
