"""Bakes the kernel profiles that ship: those of common models of the catalogue on their default GPUs, and a few others.

    python -m workshop.bake_profiles

Needs the tables of the extra `kernels`. Profiles of deployments that are no longer listed are deleted.
"""

from importlib.util import find_spec

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import load_gpu
from blis_sim.engine.latency.catalogue.reader import default_deployment, load_model
from blis_sim.engine.latency.kernels.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.sources import PROFILES, deployment_name, digest_of, measured_grids, profile_text
from workshop.ending import run_command

COMMON = (
    "codellama-34b-instruct-hf", "deepseek-v3", "glm-4.5-air-fp8", "gpt-oss-120b", "gpt-oss-20b",
    "granite-3.1-8b-instruct", "kimi-k2.5", "llama-2-13b-hf", "llama-2-70b-hf", "llama-2-7b-hf",
    "llama-3.1-70b-instruct", "llama-3.1-70b-instruct-fp8", "llama-3.1-8b-instruct", "llama-3.1-8b-instruct-fp8",
    "llama-3.2-1b-instruct", "llama-3.2-3b-instruct", "llama-4-scout-17b-16e-instruct",
    "llama-4-scout-17b-16e-instruct-fp8-dynamic", "minimax-m2.5", "minimax-m2.5-nvfp4", "mistral-7b-instruct-v0.3",
    "mistral-nemo-instruct-2407", "mistral-small-24b-instruct-2501", "mixtral-8x22b-instruct-v0.1",
    "mixtral-8x7b-v0.1", "qwen2.5-14b-instruct", "qwen2.5-32b-instruct", "qwen2.5-3b-instruct",
    "qwen2.5-72b-instruct", "qwen2.5-7b-instruct", "qwen3-0.6b", "qwen3-1.7b", "qwen3-14b", "qwen3-14b-fp8",
    "qwen3-235b-a22b-fp8", "qwen3-30b-a3b", "qwen3-30b-a3b-fp8", "qwen3-32b", "qwen3-32b-fp8", "qwen3-4b",
    "qwen3-8b", "qwen3-coder-480b-a35b-instruct-fp8", "yi-34b",
)  # fmt: skip
"""Models of the catalogue whose default deployments have a profile."""
OTHERS = (
    ("llama-3.1-8b-instruct", "A100-SXM", 1),
    ("llama-3.1-8b-instruct", "B200", 1),
    ("llama-3.1-8b-instruct", "H200", 1),
    ("llama-3.1-8b-instruct", "L40S", 1),
    ("llama-3.1-8b-instruct", "RTX-PRO-6000", 1),
    ("llama-3.1-70b-instruct", "B200", 2),
    ("llama-3.1-70b-instruct", "H100", 8),
    ("llama-3.1-70b-instruct", "H200", 2),
    ("llama-3.1-70b-instruct", "H200", 4),
    ("qwen3-32b", "H200", 1),
    ("qwen3-32b", "RTX-PRO-6000", 2),
    ("qwen3-30b-a3b", "H200", 1),
    ("qwen3-30b-a3b", "RTX-PRO-6000", 1),
    ("gpt-oss-120b", "B200", 1),
    ("gpt-oss-120b", "H100", 8),
    ("gpt-oss-120b", "H200", 1),
    ("gpt-oss-20b", "L40S", 1),
    ("kimi-k2.5-nvfp4", "B200", 4),
    ("llama-3.1-70b-instruct-fp8", "B200", 1),
    ("llama-3.1-70b-instruct-fp8", "H200", 1),
    ("llama-3.1-8b-instruct-fp8", "L40S", 1),
    ("minimax-m2.5", "B200", 4),
    ("minimax-m2.5", "H200", 4),
    ("minimax-m2.5-nvfp4", "B200", 4),
    ("qwen3-235b-a22b-fp8", "H200", 4),
    ("qwen3-8b", "A100-SXM", 1),
    ("qwen3-8b", "L40S", 1),
)
"""More of them: model, GPU and tensor parallelism."""


def main() -> int:
    """Write the files, and print which deployments have none and why."""
    if find_spec("aiconfigurator_core") is None:  # or every profile would count as one that cannot be baked
        raise ModuleNotFoundError(name="aiconfigurator-core")
    common = [(model, *(default_deployment(model) or ("", 0))) for model in COMMON]
    PROFILES.mkdir(exist_ok=True)
    written = set()
    for name, gpu_name, tp in (*common, *OTHERS):
        model, gpu = load_model(name), load_gpu(gpu_name)
        placement = KernelPlacement(tp=tp)
        try:
            operations = operations_of(model, placement)
            grids = measured_grids(operations, gpu)
        except EngineError as error:
            print(f"{name} on {gpu_name} with tp {tp}: {str(error)[:200]}")
            continue
        digest = digest_of(operations, gpu.name)
        path = PROFILES / f"{name}.{gpu.name}.tp{tp}.{digest}.json"
        path.write_text(profile_text(grids, deployment_name(model, gpu, placement), digest), encoding="utf-8")
        written.add(path)
    for path in set(PROFILES.glob("*.json")) - written:
        path.unlink()
    print(f"{len(written)} profiles, {sum(path.stat().st_size for path in written):,} bytes")
    return 0


if __name__ == "__main__":
    run_command(main)
