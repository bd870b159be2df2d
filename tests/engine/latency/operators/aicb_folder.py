"""Made-up tables of AICB for Qwen3-30B-A3B, whose times can be worked out by hand."""

import json
from pathlib import Path

MODEL, LAYERS, HIDDEN, TOP_K = "qwen/qwen3-30b-a3b", 48, 2048, 8
HEADER = "layer_id\tlayer_name\tcomp_time\tcomm_size\n"


def exchanged_bytes(tokens: int, tp: int = 1) -> int:
    """Return the bytes of dispatch and combine that AICB counts."""
    combine = 2 * tokens * HIDDEN * TOP_K // tp
    return combine + int(combine * 1.03125 / 2)


def name_of(phase: str, size: int, tokens: int, tp: int = 1, world: int = 2) -> str:
    """Return the name of a CSV file."""
    return f"vidur-Qwen3-30B-world_size{world}-tp{tp}-pp1-ep{world}-bs{size}-seq{tokens}-{phase}.csv"


def rows(attention_ns: int, moe_ns: int, computed_tokens: int, tp: int = 1) -> str:
    """Return the rows of all layers."""
    reduced = 2 * computed_tokens * HIDDEN if tp > 1 else 0
    return "".join(
        f"{layer}\tattention\t{attention_ns}\t{reduced}\n"
        f"{layer}\tmoe\t{moe_ns}\t{exchanged_bytes(computed_tokens, tp)}\n"
        for layer in range(LAYERS)
    )


def write_tables(folder: Path, tp: int = 1, world: int = 2) -> str:
    """Write tables of two prompts and of three batches of decodes. Returns the value of --operators."""
    files = {("prefill", 1, 100): (1000, 2000, 100), ("prefill", 1, 300): (3000, 5000, 300)}
    files |= {("decode", 1, 100): (50, 70, 1), ("decode", 1, 200): (60, 70, 1), ("decode", 3, 200): (80, 90, 3)}
    for (phase, size, tokens), figures in files.items():
        header = HEADER if phase == "prefill" else ""
        (folder / name_of(phase, size, tokens, tp, world)).write_text(header + rows(*figures, tp))
    return f"aicb:{folder}"


def as_json(text: str) -> str:
    """Return rows as SimAI's cache has them."""
    layers: dict[str, dict[str, dict[str, float]]] = {}
    for line in text.splitlines():
        layer, name, time, size = line.split("\t")
        layers.setdefault(layer, {})[name] = {"comp_time": float(time), "comm_size": float(size)}
    return json.dumps(layers)
