"""From a deployment to its kernel times: those of a baked profile, or of the tables of its GPU."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.kernels.grids import TOKEN_CLASSES, KernelGrids, Times
from blis_sim.engine.latency.kernels.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.operations import HeadAttention, StepOperations
from blis_sim.engine.latency.kernels.tables import DISTRIBUTION, INSTALL, SYSTEMS, VERSION, Tables, are_installed
from blis_sim.engine.specs import GpuSpec, ModelSpec

PROFILES = Path(__file__).parent / "profiles"
FORMAT = 1
_ORIGIN: Mapping[str, str] = {
    "license": "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0",
    "copyright": "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.",
    "changes": (
        f"Made of the measurements in {DISTRIBUTION} {VERSION}: those of one deployment's operations were looked up on "
        "grids, repaired as noted, added up over all layers, and rounded to 4 digits."
    ),
}
_DIGITS = 4
_MAX_POINTS = 1000
_MAX_TIME_US = 1e12


def digest_of(operations: StepOperations, gpu: str) -> str:
    """Return a name for the kernels of a deployment: equal operations on equal GPUs have equal names."""
    return hashlib.sha256(repr((operations, gpu)).encode()).hexdigest()[:16]


def shipped_profile(digest: str) -> Path | None:
    """Return the file of a deployment among those that ship, None when there is none."""
    return next(PROFILES.glob(f"*.{digest}.json"), None)


def profile_text(grids: KernelGrids, deployment: str, digest: str) -> str:
    """Return the content of a file. `deployment` is for people, `digest` identifies the kernels."""
    token_us = {name: _rounded(row) for name, row in zip(TOKEN_CLASSES, grids.token_us, strict=True)}
    content = {
        "kernel_profile": FORMAT,
        "deployment": deployment,
        "operations": digest,
        **_ORIGIN,
        "notes": list(grids.notes),
        "num_layers": grids.num_layers,
        "num_kernels": grids.num_kernels,
        "tokens": list(grids.tokens),
        **{f"{name}_us": row for name, row in token_us.items()},
        "head_us": _rounded(grids.head_us),
        "decode_requests": list(grids.decode_requests),
        "decode_context": list(grids.decode_context),
        "decode_us": _rounded(grids.decode_us),
        "prompt_requests": list(grids.prompt_requests),
        "prompt_tokens": list(grids.prompt_tokens),
        "prompt_context": list(grids.prompt_context),
        "prompt_us": _rounded(grids.prompt_us),
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_profile(path: Path, digest: str, deployment: str) -> KernelGrids:
    """Read a file. Raises EngineError that names it and what is wrong, such as kernels of another deployment."""
    content = read_mapping(path)
    if content.get("kernel_profile") != FORMAT:
        raise EngineError(f"{path}: kernel_profile must be {FORMAT}, got {content.get('kernel_profile')!r}")
    if content.get("operations") != digest:
        raise EngineError(f"{path}: it was baked for {content.get('deployment')!s}, not for {deployment}")
    tokens = _points(path, content, "tokens")
    rows = [_times(path, content, f"{name}_us", (len(tokens),)) for name in TOKEN_CLASSES]
    decode = [_points(path, content, name) for name in ("decode_requests", "decode_context")]
    prompt = [_points(path, content, name) for name in ("prompt_requests", "prompt_tokens", "prompt_context")]
    return KernelGrids(
        tokens=tokens,
        token_us=np.array(rows),
        head_us=_times(path, content, "head_us", (len(tokens),)),
        decode_requests=decode[0],
        decode_context=decode[1],
        decode_us=_times(path, content, "decode_us", tuple(map(len, decode))),
        prompt_requests=prompt[0],
        prompt_tokens=prompt[1],
        prompt_context=prompt[2],
        prompt_us=_times(path, content, "prompt_us", tuple(map(len, prompt))),
        num_layers=_count(path, content, "num_layers"),
        num_kernels=_count(path, content, "num_kernels"),
        notes=tuple(map(str, content.get("notes") or ())),
    )


def _points(path: Path, content: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = content.get(name)
    if isinstance(found, list) and 2 <= len(found) <= _MAX_POINTS and {type(each) for each in found} == {int}:
        points = [-1, *found]
        if points == sorted(set(points)):
            return tuple(found)
    raise EngineError(f"{path}: {name} must be 2 to {_MAX_POINTS} ascending whole numbers, got {_shown(found)}")


def _times(path: Path, content: Mapping[str, Any], name: str, sizes: Sequence[int]) -> Times:
    found = content.get(name)
    try:
        times = np.array(found, dtype=np.float64)
    except (TypeError, ValueError):
        times = np.empty(0)
    if times.shape != tuple(sizes) or not ((times >= 0) & (times <= _MAX_TIME_US)).all():
        expected = " x ".join(map(str, sizes))
        raise EngineError(f"{path}: {name} must be {expected} numbers from 0 to {_MAX_TIME_US:g}, got {_shown(found)}")
    return times


def _count(path: Path, content: Mapping[str, Any], name: str) -> int:
    found = content.get(name)
    if type(found) is not int or not 0 < found <= _MAX_TIME_US:
        raise EngineError(f"{path}: {name} must be a whole number of at least 1, got {_shown(found)}")
    return found


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _rounded(values: Times) -> list[Any]:
    if values.ndim > 1:
        return [_rounded(each) for each in values]
    return [int(number) if number.is_integer() else number for number in map(_digits, values.tolist())]


def _digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


_AMPERE, _HOPPER, _BLACKWELL = 8, 9, 10
_ROWS_OF_FLASH_ATTENTION_2 = 64


def has_one_attention_call(operations: StepOperations, gpu: GpuSpec) -> bool:
    """Return whether one kernel per layer computes the attention of prompts and of requests that decode.

    FlashAttention does: version 3 on Hopper, version 2 where `decode_rows` has rows. FlashInfer and latent attention
    have one call for each.
    """
    mixers = [attention for attention, _ in operations.attention]
    is_hopper = int(gpu.compute_capability) == _HOPPER
    has_version_3 = is_hopper and bool(mixers) and all(isinstance(each, HeadAttention) for each in mixers)
    return has_version_3 or decode_rows(operations, gpu) > 0


def decode_rows(operations: StepOperations, gpu: GpuSpec) -> int:
    """Return the prompt tokens that a request which decodes counts as in the attention of a step with prompts.

    0 where it costs what it costs without them. FlashAttention computes a whole batch in one call. Version 3, on
    Hopper, always packs the query heads that share KV into one tile; version 2, on all other GPUs but the first
    Blackwell, does so only where no request has more than one new token. Beside a prompt each query head gets a tile of
    64 rows, of which one is used. FlashInfer, which vLLM takes on Blackwell and for KV caches in FP8 beside version 2,
    and latent attention have one call for prompts and one for decodes.
    """
    mixers = [attention for attention, _ in operations.attention]
    uses_half = all(isinstance(each, HeadAttention) and each.kv_dtype == "bfloat16" for each in mixers)
    has_version_2 = int(gpu.compute_capability) >= _AMPERE and int(gpu.compute_capability) not in (_HOPPER, _BLACKWELL)
    return _ROWS_OF_FLASH_ATTENTION_2 if mixers and uses_half and has_version_2 else 0


_KEPT_GRIDS = 8


@lru_cache(maxsize=_KEPT_GRIDS)
def measured_grids(operations: StepOperations, gpu: GpuSpec) -> "KernelGrids":
    """Return the kernel times of a deployment from the tables of its GPU. Raises EngineError."""
    from blis_sim.engine.latency.kernels.baking import (
        RepairedTables,
        bake,  # deployments with a profile do without the tables
    )

    return bake(operations, RepairedTables(gpu, Tables(gpu.name)))


def grids_of(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement) -> "KernelGrids":
    """Return the kernel times of a deployment: of the profile that it names, else of one that ships, else of tables.

    Raises EngineError, which names what to install where there are none of these.
    """
    operations = operations_of(model, placement)
    digest = digest_of(operations, gpu.name)
    deployment = deployment_name(model, gpu, placement)
    if placement.profile is not None:
        return read_profile(Path(placement.profile), digest, deployment)
    shipped = shipped_profile(digest)
    if shipped is not None:
        return read_profile(shipped, digest, deployment)
    if gpu.name in SYSTEMS and not are_installed():
        raise EngineError(f"no profile of the kernels of {deployment} ships, and their tables need: {INSTALL}")
    return measured_grids(operations, gpu)


def deployment_name(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement) -> str:
    """Return a deployment in words."""
    experts = " and expert parallelism" if placement.expert_parallel else ""
    kv_dtype = "" if placement.kv_cache_dtype == "auto" else f", KV cache in {placement.kv_cache_dtype}"
    return f"{model.name} on {gpu.name} with tp {placement.tp}{experts}{kv_dtype}"
