"""A file of learned coefficients, close to those of a real server, for tests."""

from pathlib import Path
from typing import Any

import yaml

CONTENT: dict[str, Any] = {
    "latency_model": "fitted",
    "learned_for": {"model": "qwen3-14b", "hardware": "H100", "tp": 1},
    "step": {
        "weights": 1.2,
        "layer_us": 25.0,
        "tokens": 0.5,
        "tiles": 0.9,
        "small_tiles": 0.1,
        "attention": 2.0,
        "kv": 1.1,
        "all_reduce": 1.0,
        "decodes": 0.3,
        "burst": 0.02,
        "burst_again": 0.1,
        "step_us": 20.5,
        "prompt_us": 1500.0,
        "request_us": 20.0,
    },
    "request": {"arrival_us": 3000.0, "arrival_token_us": 1.5, "output_us": 900.0, "output_request_us": 40.0},
    "seen": {"num_tokens": 3000, "decode_requests": 30, "decode_context_tokens": 33000},
}


def written(folder: Path, **sections: Any) -> Path:
    """The file, with `sections` replaced; a section that is None is left out."""
    path = folder / "coefficients.yaml"
    content = {key: value for key, value in (CONTENT | sections).items() if value is not None}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
