"""The tables that --operators names, for the arithmetic of whole batches in seconds, and the backends of SimAI."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_sim.bench import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.bench.vidur.settings import chosen, values_of
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.operators.aicb import AicbFolder
from blis_sim.engine.latency.operators.sources import PROFILES
from blis_sim.engine.latency.operators.tables import Line, OperatorTables, read_lookup_tables
from blis_sim.engine.specs import GpuSpec, ModelSpec

if TYPE_CHECKING:
    from blis_sim.bench.vidur.cluster import Cluster
    from blis_sim.bench.vidur.step_source import StepSource


def _learned(method: str, folder: str, options: Any) -> OperatorTables:
    """Return the tables that a method makes of measurements as Vidur's `data/profiling` has them."""
    from blis_sim.engine.latency.operators.learning import learned_tables
    from blis_sim.engine.latency.operators.profiles import read_profiles

    replica = values_of(options, vidur.REPLICA)
    sizes = MODELS[replica["model_name"]]
    model = ModelSpec(
        name=sizes.name,
        num_layers=sizes.num_layers,
        hidden_size=sizes.embedding_dim,
        num_heads=sizes.num_q_heads,
        num_kv_heads=sizes.num_kv_heads,
        vocab_size=sizes.vocab_size,
        intermediate_size=sizes.mlp_hidden_dim,
    )
    gpu = GpuSpec(name=replica["device"], tflops=0, bandwidth_tb_s=0, gpus_per_node=NODES[replica["network_device"]][0])
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    profiles = read_profiles(folder, LatencyChoice(model=model, gpu=gpu, tp=tp, pp=pp))
    tables, cpu = learned_tables(profiles, method, Path.home() / ".cache" / "blis" / "operators")
    return replace(tables, cpu=cpu)


SOURCES: Mapping[str, Callable[[str, Any], OperatorTables | AicbFolder]] = {
    PROFILES: partial(_learned, "interpolation"),
    "forest": partial(_learned, "forest"),
    "polynomial": partial(_learned, "polynomial"),
    "vidur-tables": lambda prefix, _: read_lookup_tables(prefix),
    "aicb": lambda folder, _: AicbFolder(folder),
}
"""By what stands before the colon; a folder alone has profiling tables."""
AICB, ANALYTICAL, SIMULATION = "aicb", "simai_analytical", "simai_simulation"
BACKENDS = ("vidur", AICB, ANALYTICAL, SIMULATION)


def is_aicb(options: Any) -> bool:
    """Return whether times are those of AICB's tables."""
    return bool(options.operators) and options.operators.partition(":")[0] == "aicb"


def has_steps_only(options: Any) -> bool:
    """Return whether times are those of whole steps."""
    return options.operators is None


def reads_profiles(options: Any) -> bool:
    """Return whether times are learned from profiling tables, which may have those of the CPU."""
    if has_steps_only(options):
        return False
    name, colon, _ = (options.operators or "").partition(":")
    return not colon or name in (PROFILES, "forest", "polynomial")


def source_of_times(
    options: Any, cluster: "Cluster"
) -> "tuple[Any, OperatorTables | AicbFolder | StepSource, tuple[str, ...]]":
    """Return what batches are timed by, with the options that say so and notes. Raises BlisError.

    Without --operators these are Vidur's own tables in the working folder, else a latency model of whole steps.
    """
    if options.operators is not None:
        return options, operator_tables(options), ()
    from blis_sim.bench.vidur.step_source import step_source, with_profiling_tables

    found, note = with_profiling_tables(options, operator_tables)
    if found.operators is not None:
        return found, operator_tables(found), (note,)
    predictor = chosen(options, vidur.PREDICTOR)
    backend = values_of(options, predictor)["backend"]
    if options.compat or backend in (ANALYTICAL, SIMULATION):
        flag = f"--compat {options.compat}" if options.compat else f"--{predictor.prefix}_backend {backend}"
        raise BenchError(f"{flag} needs --operators, which is not given, and {note}")
    source = step_source(options, cluster, note)
    return options, source, source.notes


def operator_tables(options: Any) -> OperatorTables | AicbFolder:
    """Return the tables. Raises BlisError."""
    allowed = "a folder of profiling tables, forest:DIR, polynomial:DIR, vidur-tables:PREFIX or aicb:DIR"
    if options.operators is None:
        raise BenchError(f"--operators must be given: {allowed}")
    name, colon, place = options.operators.partition(":")
    if not colon:
        name, place = PROFILES, options.operators
    if name not in SOURCES or not place:
        raise BenchError(f"--operators must be {allowed}, got {options.operators!r}")
    predictor = chosen(options, vidur.PREDICTOR)
    backend = values_of(options, predictor)["backend"]
    if backend not in BACKENDS:
        raise BenchError(f"--{predictor.prefix}_backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    tables = SOURCES[name](place, options)
    if isinstance(tables, OperatorTables):
        if values_of(options, predictor)["skip_cpu_overhead_modeling"]:
            tables = replace(tables, cpu=None)
        if options.compat == "simai":
            tables.compute["attn_rope"] = Line([1], [0.0])  # SimAI has switched it off
        if backend in (ANALYTICAL, SIMULATION):
            tables.compute["all_reduce"] = _exchanges(options, backend)
    return tables


def _exchanges(options: Any, backend: str) -> Line:
    """Return the all-reduces of a backend of SimAI. Raises BlisError."""
    from blis_sim.engine.latency.choice import NetworkOptions
    from blis_sim.engine.latency.collectives.analytical import NVLINK_GB_S
    from blis_sim.engine.latency.collectives.sources import ExchangeLine, network_of

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
