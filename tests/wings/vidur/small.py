"""Tables so small that times can be worked out by hand, and command lines that use them."""

from pathlib import Path

from blis_sim.cli.main import run
from blis_sim.wings.vidur.replica import TimedJob
from blis_sim.wings.vidur.rules import BatchLimits
from tests.wings.vidur.goldens import rows_of

OPERATORS = "attn_pre_proj,attn_post_proj,mlp_up_proj,mlp_down_proj,mlp_act,attn_rope,input_layernorm,add"
LAYERS = 32
"""Tables of Llama-2-7b, whose layers take as many milliseconds as tokens, rounded up to a multiple of 8, in one
operator."""
STEP_S = 8 * LAYERS / 1000
"""A step of up to 8 tokens with these tables, without attention."""


def tables(folder: Path) -> str:
    """Write tables in which a step of n tokens takes ceil8(n) ms for each layer, and attention 1 us for each token."""
    cells = "0," * 7
    (folder / "s_compute.csv").write_text(f"num_tokens,{OPERATORS}\n1,{cells}1\n4096,{cells}4096\n")
    decode = "".join(f"{size},{kv},{kv / 1000}\n" for size in (1, 128) for kv in (0, 64, 128, 4096))
    (folder / "s_attn_decode.csv").write_text(f"batch_size,kv_cache_size,prediction\n{decode}")
    (folder / "s_attn_prefill.csv").write_text(
        "prefill_chunk_size,kv0,kv64,kv4096\n1,0,.064,4.096\n4096,0,.064,4.096\n"
    )
    return str(folder / "s")


def limits(
    *, is_original: bool = False, num_blocks: int = 100, tokens: int = 64, seqs: int = 4, stages: int = 1
) -> BatchLimits:
    """Return limits with blocks of 4 tokens, and requests of at most 40 tokens."""
    return BatchLimits(
        num_blocks=num_blocks,
        block_size_tokens=4,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=40,
        num_stages=stages,
        watermark_fraction=0.0,
        is_original=is_original,
    )


def job(prompt_tokens: int, output_tokens: int, arrived_at: float = 0.0, index: int = 0) -> TimedJob:
    """Return a request."""
    return TimedJob(index, arrived_at, prompt_tokens, output_tokens)


def vidur(folder: Path, requests: str, *more: str) -> dict[str, list[dict[str, str]]]:
    """Simulate recorded requests with the small tables. Returns the rows of the files written, by their names."""
    made = written(folder, requests, "--no-metrics_config_store_plots", *more)
    return {name: rows_of(made / f"{name}.csv") for name in ("request_metrics", "batch_metrics")}


def written(folder: Path, requests: str, *more: str) -> Path:
    """Simulate recorded requests with the small tables. Returns the folder that was written."""
    (folder / "requests.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{requests}")
    words = ["vidur", "--request_generator_config_type", "trace_replay"]
    words.append("--metrics_config_keep_individual_batch_metrics")
    words += ["--trace_request_generator_config_trace_file", str(folder / "requests.csv")]
    words += [
        "--operators",
        f"vidur-tables:{tables(folder)}",
        "--metrics_config_output_dir",
        str(folder / "out"),
        *more,
    ]
    assert run(words) == 0
    return max((folder / "out").iterdir())
