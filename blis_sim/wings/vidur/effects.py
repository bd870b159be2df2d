"""Flags of Vidur and SimAI that were given and change nothing here."""

from collections.abc import Iterator
from typing import Any

from blis_sim.installation import install_command
from blis_sim.options import options_of
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.catalogue import MODELS
from blis_sim.wings.vidur.cluster import SPLIT_WISE
from blis_sim.wings.vidur.latency import AICB, ANALYTICAL, SIMULATION, backend_of, reads_profiles, source_of
from blis_sim.wings.vidur.settings import chosen, is_original, values_of
from replay.metrics_dir.pictures import can_draw

_WITH_TABLES = "the times of operators come from --operators"
_ACTING_ON_TABLES = (
    "attention_decode_batching_overhead_fraction",
    "attention_prefill_batching_overhead_fraction",
    "nccl_cpu_launch_overhead_ms",
    "nccl_cpu_skew_overhead_per_device_ms",
)
"""Settings of a predictor that act on tables of operators."""
_OF_SIMULATION = ("simai_dir", "simai_simulation_topo", "simai_simulation_config")
_OF_TRANSFERS = ("pd_p2p_comm_bandwidth", "pd_node_ratio", "num_prefill_replicas")
_OF_PHASES = (
    "prefill_tensor_parallel_size",
    "prefill_num_pipeline_stages",
    "decode_tensor_parallel_size",
    "decode_num_pipeline_stages",
)


def flags_without_effect(options: Any) -> Iterator[str]:
    """Yield a line for each flag that was given another value than its default, or is on, and changes nothing."""
    reasons = {each.flag: each.no_effect for each in vidur.SETTINGS if each.no_effect}
    reasons |= {**_of_predictors(options), **_of_replicas(options), **_of_others(options)}
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.name in reasons and value != setting.default:
            yield f"{setting.label} has no effect: {reasons[setting.name]}"
    yield from _without_files(values_of(options, vidur.METRICS), options)


def _without_files(given: dict[str, Any], options: Any) -> Iterator[str]:
    """Yield a line for each file that is requested and cannot be written."""
    prefix = f"--{vidur.METRICS.prefix}_"
    if not given["write_metrics"]:
        return
    if given["store_plots"] and not can_draw():
        yield f"{prefix}store_plots has no effect: pictures need matplotlib, {install_command('plots')}"
    if given["store_operation_metrics"] and options.operators is None:
        yield f"{prefix}store_operation_metrics has no effect: times are those of whole steps"
    if given["store_operation_metrics"] and source_of(options)[0] == AICB:
        yield f"{prefix}store_operation_metrics has no effect: AICB's tables have layers, no operators"
    if given["store_utilization_metrics"] and MODELS[values_of(options, vidur.REPLICA)["model_name"]].experts:
        yield f"{prefix}store_utilization_metrics writes no MFU: the arithmetic of experts is not counted"


def _of_predictors(options: Any) -> dict[str, str]:
    acting = set() if options.operators is None else set(_ACTING_ON_TABLES)
    reason = "times are those of whole steps" if options.operators is None else _WITH_TABLES
    backend = backend_of(options)
    if reads_profiles(options):
        acting.add("skip_cpu_overhead_modeling")
    if source_of(options)[0] == AICB:
        acting = {"backend"} if backend == AICB else set()
        acting |= {"aicb_force_bs1"} if is_original(options) else set()
    elif backend in (ANALYTICAL, SIMULATION):
        acting |= {"backend", *(_OF_SIMULATION if backend == SIMULATION else ())}
    return {
        setting.flag: reason
        for group in vidur.PREDICTOR.kinds.values()
        for setting in group.settings
        if setting.name not in acting
    } | {vidur.PREDICTOR.flag: reason}


def _of_replicas(options: Any) -> dict[str, str]:
    """Settings of SimAI's replicas: links, and separate replicas for prompts and decodes."""
    found = {"expert_model_parallel_size": "all GPUs of a phase share the experts"}
    if chosen(options, vidur.REPLICA_SCHEDULER).name != SPLIT_WISE:
        reason = f"--{vidur.REPLICA_SCHEDULER.flag} is not {SPLIT_WISE}"
        found |= dict.fromkeys((*_OF_TRANSFERS, *_OF_PHASES), reason)
        if source_of(options)[0] != AICB:
            found["pd_p2p_comm_dtype"] = reason
    elif source_of(options)[0] != AICB and is_original(options):
        found |= dict.fromkeys((*_OF_PHASES, "num_prefill_replicas"), "SimAI has it act on AICB's tables alone")
    if source_of(options)[0] != AICB:
        found |= dict.fromkeys(("nvlink_bandwidth", "rdma_bandwidth"), "--operators is not aicb")
    elif is_original(options):
        found["nvlink_bandwidth"] = "SimAI never reads it"
    return {f"{vidur.REPLICA.prefix}_{name}": reason for name, reason in found.items()}


def _of_others(options: Any) -> dict[str, str]:
    """Settings of kinds that were not chosen, and those of drawn requests where recorded ones are taken."""
    found: dict[str, str] = {}
    is_recorded = chosen(options, vidur.REQUESTS).name == "trace_replay"
    for choice in vidur.CHOICES:
        is_used = not (is_recorded and choice in (vidur.LENGTHS, vidur.INTERVALS))
        if not is_used:
            found[choice.flag] = f"requests are recorded ones, as --{vidur.REQUESTS.flag} says"
        for group in choice.kinds.values():
            if group is not chosen(options, choice) or not is_used:
                reason = f"--{choice.flag} is {getattr(options, choice.flag)}"
                if not is_used:
                    reason = f"--{vidur.REQUESTS.flag} is trace_replay"
                found |= {setting.flag: reason for setting in group.settings}
    return found
