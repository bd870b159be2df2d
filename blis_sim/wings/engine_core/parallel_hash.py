"""The hash by which vLLM's frontend compares the parallel settings of ranks that share experts.

Facts: `compute_hash` in vllm/config/parallel.py and `hash_factors` in vllm/config/utils.py of release 0.33.
"""

import hashlib
import json

from blis_sim.engine.deployment import Deployment
from blis_sim.wings.engine_core.options import EngineCoreOptions

_UNSET = ("cpu_distributed_timeout_seconds", "distributed_timeout_seconds")
_OFF = (
    *("enable_dbo", "enable_elastic_ep", "enable_ep_weight_filter", "enable_eplb", "enable_expert_parallel"),
    *("enable_fault_tolerance", "enable_hc_sp", "dcp_q_replicate", "enable_batch_sharded_sampling"),
)
_BALANCER = (
    *(("communicator", None), ("enable_migration_batching", False), ("log_balancedness", False)),
    *(("log_balancedness_interval", 1), ("num_redundant_experts", 0), ("policy", "default"), ("step_interval", 3000)),
    *(("use_async", True), ("window_size", 1000)),
)
_DEFAULTS: dict[str, object] = {
    **dict.fromkeys(_UNSET),
    **dict.fromkeys(_OFF, False),
    "_allow_auto_resolve_cp_interleave_size": True,
    "all2all_backend": "allgather_reducescatter",
    "cp_kv_cache_interleave_size": 1,
    "dbo_decode_token_threshold": 32,
    "dbo_prefill_token_threshold": 512,
    "dcp_comm_backend": "ag_rs",
    "dcp_kv_cache_interleave_size": 1,
    "decode_context_parallel_size": 1,
    "dp_sync_interval": 16,
    "eplb_config": ("vllm.config.parallel.EPLBConfig", _BALANCER),
    "expert_placement_strategy": "linear",
    "fault_tolerance_config": (
        "vllm.config.fault_tolerance.FaultToleranceConfig",
        (("engine_recovery_timeout_sec", 120),),
    ),
    "prefill_context_parallel_size": 1,
    "ubatch_size": 0,
}
"""Settings that no flag of this command sets, as vLLM has them by default."""


def parallel_config_hash(options: EngineCoreOptions, deployment: Deployment) -> str:
    """Return the hash of a frontend with the parallel sizes of this deployment and vLLM's defaults otherwise."""
    size = options.deployment.dp
    settings = {
        **_DEFAULTS,
        "data_parallel_size": size,
        # A frontend of the CPU or with asynchronous scheduling: ranks agree through their hosts.
        "disable_nccl_for_dp_synchronization": True,
        "elastic_ep_max_dp_size": size,
        "enable_expert_parallel": options.deployment.enable_expert_parallel,
        "is_moe_model": deployment.model.num_experts > 1,
        "pipeline_parallel_size": deployment.pp,
        "tensor_parallel_size": deployment.tp,
        "world_size": deployment.tp * deployment.pp,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
