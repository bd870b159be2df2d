"""operation_metrics.csv and cpu_operation_metrics.csv: what each operator of a layer took in each batch."""

from pathlib import Path

import numpy as np

from blis_sim.bench.vidur.batches import Batches
from blis_sim.bench.vidur.distributions import Floats
from blis_sim.bench.vidur.simulation import Simulated
from blis_sim.bench.vidur.times import OPERATIONS, BatchTimes
from replay.metrics_dir.tables import write_csv

CPU_OPERATIONS = (
    "schedule",
    "sample_e2e",
    "prepare_inputs_e2e",
    "model_execution_e2e",
    "process_model_outputs",
    "ray_comm_time",
)


def operation_columns(simulated: Simulated, batches: Batches) -> dict[str, Floats]:
    """Return the milliseconds of each operator in one layer by batch, those of the first stage; NaN where it rests."""
    cluster, logs = simulated.cluster, simulated.logs
    pools = [place for place, pool in enumerate(cluster.pools) for _ in range(pool.num_replicas)]
    found = np.zeros((len(batches), len(OPERATIONS)))
    columns = (batches.replicas, batches.entries, batches.repeats)
    for number, (replica, entry, repeat) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        log, times = logs[replica], simulated.times[pools[replica]]
        assert isinstance(times, BatchTimes)
        decodes = log.decodes[entry]
        found[number] = times.operations_ms(
            log.prefill_tokens[entry],
            decodes,
            log.contexts[entry] + repeat * decodes,
            log.prefills[entry],
            log.prefill_granules[entry] if cluster.is_original else log.prefill_contexts[entry],
            log.prefill_squares[entry],
            sends=bool(log.stages),
        )
    return {name: found[:, place] for place, name in enumerate(OPERATIONS)}


def cpu_columns(simulated: Simulated, batches: Batches) -> dict[str, Floats]:
    """Return the milliseconds of the CPU's work, of which nothing is measured, and those of the model, by batch."""
    seconds = batches.seconds.copy()
    for number, log in enumerate(simulated.logs):
        if log.stages:
            mine, stage = np.flatnonzero(batches.replicas == number), log.stages[0]
            seconds[mine] = (np.array(stage.ends) - np.array(stage.starts))[: len(mine)]
    nothing = np.zeros(len(batches))
    return {name: seconds * 1e3 if name == "model_execution_e2e" else nothing for name in CPU_OPERATIONS}


def write_operations(columns: dict[str, Floats], path: Path) -> None:
    """Write a row for each batch; cells of operators that rest are empty."""
    cells = [[None if np.isnan(each) else each for each in column.tolist()] for column in columns.values()]
    rows = ([number, *row] for number, row in enumerate(zip(*cells, strict=True)))
    write_csv(path, ("Batch Id", *columns), rows)
