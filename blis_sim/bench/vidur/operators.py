"""The tables that --operators names, for the arithmetic of whole batches in seconds, and the backends of SimAI."""

from collections.abc import Callable, Mapping
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.bench.vidur.options import chosen, values_of
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.operators.aicb_files import AicbFolder
from blis_sim.engine.latency.operators.tables import Line, OperatorTables, read_lookup_tables

SOURCES: Mapping[str, Callable[[str], OperatorTables | AicbFolder]] = {
    "vidur-tables": read_lookup_tables,
    "aicb": AicbFolder,
}
"""By what stands before the colon."""
AICB, ANALYTICAL, SIMULATION = "aicb", "simai_analytical", "simai_simulation"
BACKENDS = ("vidur", AICB, ANALYTICAL, SIMULATION)


def is_aicb(options: Any) -> bool:
    """Return whether times are those of AICB's tables."""
    return bool(options.operators) and options.operators.partition(":")[0] == "aicb"


def operator_tables(options: Any) -> OperatorTables | AicbFolder:
    """Return the tables. Raises BlisError."""
    allowed = "vidur-tables:PREFIX, aicb:DIR"
    if options.operators is None:
        raise BenchError(f"--operators must be given: one of {allowed}")
    name, _, place = options.operators.partition(":")
    if name not in SOURCES or not place:
        raise BenchError(f"--operators must be one of {allowed}, got {options.operators!r}")
    predictor = chosen(options, vidur.PREDICTOR)
    backend = values_of(options, predictor)["backend"]
    if backend not in BACKENDS:
        raise BenchError(f"--{predictor.prefix}_backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    tables = SOURCES[name](place)
    if isinstance(tables, OperatorTables):
        if options.compat == "simai":
            tables.compute["attn_rope"] = Line([1], [0.0])  # SimAI has switched it off
        if backend in (ANALYTICAL, SIMULATION):
            tables.compute["all_reduce"] = _exchanges(options, backend)
    return tables


def _exchanges(options: Any, backend: str) -> Line:
    """Return the all-reduces of a backend of SimAI. Raises BlisError."""
    from blis_sim.engine.latency.collectives.analytical import NVLINK_GB_S
    from blis_sim.engine.latency.collectives.sources import ExchangeLine, network_of
    from blis_sim.engine.network_options import NetworkOptions

    replica, predictor = values_of(options, vidur.REPLICA), values_of(options, chosen(options, vidur.PREDICTOR))
    tp, device = replica["tensor_parallel_size"], replica["device"].upper()
    if backend == ANALYTICAL and device not in NVLINK_GB_S:
        known = ", ".join(name for name in DEVICES if name.upper() in NVLINK_GB_S)
        raise BenchError(f"--replica_config_device must be one of {known} with {ANALYTICAL}, got {replica['device']}")
    gpu = GpuSpec(name=device, tflops=0, bandwidth_tb_s=0, gpus_per_node=NODES[replica["network_device"]][0])
    given = NetworkOptions(collectives="analytical")
    if backend == SIMULATION:
        given = NetworkOptions(
            collectives=f"ns3:{predictor['simai_dir'].rstrip('/')}/bin/SimAI_simulator",
            topology=predictor["simai_simulation_topo"],
            network_config=predictor["simai_simulation_config"],
        )
    network = network_of(given, gpu, tp, replica["num_pipeline_stages"])
    assert network is not None
    return ExchangeLine(network, tp, 2 * MODELS[replica["model_name"]].embedding_dim)
