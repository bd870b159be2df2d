"""Baked profiles: the kernel times of one deployment in a file, for computers without the tables."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.kernels.grids import TOKEN_CLASSES, KernelGrids, Times
from blis_sim.engine.latency.kernels.operations import StepOperations
from blis_sim.engine.latency.kernels.tables import DISTRIBUTION, VERSION

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
_MOST_POINTS = 1000
_MOST_US = 1e12


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
    if isinstance(found, list) and 2 <= len(found) <= _MOST_POINTS and {type(each) for each in found} == {int}:
        points = [-1, *found]
        if points == sorted(set(points)):
            return tuple(found)
    raise EngineError(f"{path}: {name} must be 2 to {_MOST_POINTS} ascending whole numbers, got {_shown(found)}")


def _times(path: Path, content: Mapping[str, Any], name: str, sizes: Sequence[int]) -> Times:
    found = content.get(name)
    try:
        times = np.array(found, dtype=np.float64)
    except (TypeError, ValueError):
        times = np.empty(0)
    if times.shape != tuple(sizes) or not ((times >= 0) & (times <= _MOST_US)).all():
        expected = " x ".join(map(str, sizes))
        raise EngineError(f"{path}: {name} must be {expected} numbers from 0 to {_MOST_US:g}, got {_shown(found)}")
    return times


def _count(path: Path, content: Mapping[str, Any], name: str) -> int:
    found = content.get(name)
    if type(found) is not int or not 0 < found <= _MOST_US:
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
