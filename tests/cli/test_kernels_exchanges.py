"""`blis kernels exchanges`: the bytes of AICB's tables for models with experts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.latency.aicb import AicbFolder, exchange_rows, exchange_table, read_layers
from blis_sim.engine.latency.catalogue import model_names
from blis_sim.engine.latency.catalogue_reader import load_model

NAMES = {
    "DeepSeek-671B": "deepseek-ai/deepseek-v3",
    "Qwen3-Moe-235B": "qwen/qwen3-235b-a22b",
    "Qwen3-Next-80B": "qwen/qwen3-next-80b-a3b-instruct",
}


def test_the_bytes_are_those_of_aicbs_own_tables(reference: Path, tmp_path: Path) -> None:
    folder = AicbFolder(str(reference / "golden" / "vidur-data" / "aicb" / "csv"))
    differing, compared = [], 0
    for deployment, batch in folder.keys:
        if batch.size == 3:
            continue  # three lines separated by commas
        model = load_model(NAMES[deployment.model])
        path = tmp_path / "table.csv"
        path.write_text(exchange_table(exchange_rows(model, deployment.tp, *batch)))
        ours, theirs = (
            [{name: part.exchange_bytes for name, part in layer.items()} for layer in layers]
            for layers in (read_layers(path), folder.layers(deployment, batch))
        )
        compared += 1
        if ours != theirs:
            differing.append((deployment, batch))
    assert (differing, compared) == ([], 24)


def test_every_model_of_the_catalogue_with_experts_has_a_table() -> None:
    models = [model for model in map(load_model, model_names()) if model.is_moe]
    assert len(models) > 80
    for model in models:
        assert "\tmoe\t0\t" in exchange_table(exchange_rows(model, 2, "decode", 3, 100))


def test_a_table_is_printed_or_written(blis: Callable[..., Any], tmp_path: Path) -> None:
    flags = ("kernels", "exchanges", "mixtral-8x7b-instruct-v0.1", "--tp", "2", "--sequence-tokens", "10")
    code, out, said = blis(*flags)
    lines = out.splitlines()
    assert (code, said, len(lines)) == (0, "", 1 + 2 * 32)
    assert lines[:3] == [
        "layer_id\tlayer_name\tcomp_time\tcomm_size",
        f"0\tattention\t0\t{10 * 4096 * 2}",
        f"0\tmoe\t0\t{10 * 4096 * 2 + 42240}",
    ]
    file = tmp_path / "table.csv"
    assert blis(*flags, "-o", str(file)) == (0, "", "")
    assert file.read_text() == out
    decodes = blis(*flags, "--phase", "decode", "--batch-size", "10")[1]
    assert decodes == out


def test_a_model_without_experts_is_refused_in_one_line(blis: Callable[..., Any]) -> None:
    code, _, said = blis("kernels", "exchanges", "qwen3-14b")
    assert (code, said.count("\n")) == (2, 1)
    assert "qwen3-14b has no experts, so its GPUs exchange nothing for them" in said


@pytest.mark.parametrize("flags", [("--phase", "both"), ("--tp", "0"), ("--sequence-tokens", "x")])
def test_a_wrong_batch_is_refused_in_one_line(flags: tuple[str, ...], blis: Callable[..., Any]) -> None:
    code, _, said = blis("kernels", "exchanges", "mixtral-8x7b-instruct-v0.1", *flags)
    assert (code, said.count("\n")) == (2, 1)
