"""Plans of all models with a published config equal those of vLLM 0.33 in the reference data."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.planner import PlanRequest, plan_layout
from tests.engine.memory.plan_table import KV_BYTES, groups_of

LEAST_EQUAL, LEAST_WEIGHTS = 62, 58
MOST_WEIGHT_ERROR = 0.02


@pytest.fixture(scope="module")
def configs() -> Path:
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        pytest.skip("the configs of the models lie in the distribution aiconfigurator-core, which is not installed")
    return Path(spec.origin).parent / "model_configs"


def _request(configs: Path, model: str, **changes: Any) -> PlanRequest:
    quantization = configs / f"{model}_hf_quant_config.json"
    return PlanRequest(
        config=json.loads((configs / f"{model}_config.json").read_text()),
        model=model,
        hf_quant_config=json.loads(quantization.read_text()) if quantization.is_file() else None,
        **changes,
    )


def test_plans_of_the_reference_models_equal_vllm(shared: Path, configs: Path) -> None:
    plans = [json.loads(line) for line in (shared / "golden" / "vllm-kv" / "plans.jsonl").read_text().splitlines()]
    different, heavy = [], []
    for plan in plans:
        layout = plan_layout(_request(configs, plan["model"], max_model_len=plan["max_model_len"]))
        blocks = layout.num_blocks(KV_BYTES)
        ours = (groups_of(layout), blocks, layout.capacity_tokens(blocks), *layout.granularity)
        theirs = (plan["groups"], plan["num_blocks"][0], plan["capacity"][0], plan["sched_block"], plan["hash_block"])
        if ours != theirs:
            different.append(plan["model"])
        if layout.weight_bytes_per_gpu != pytest.approx(plan["weight_bytes"], rel=MOST_WEIGHT_ERROR):
            heavy.append(plan["model"])
    assert len(plans) - len(different) >= LEAST_EQUAL, different
    assert len(plans) - len(heavy) >= LEAST_WEIGHTS, heavy


def _refusal(request: PlanRequest) -> str:
    """Return the text with which a request is refused, empty for one that is planned."""
    try:
        plan_layout(request)
    except EngineError as error:
        return str(error)
    return ""


def test_every_published_config_is_planned_or_refused_in_one_line_that_names_the_layer_kind(configs: Path) -> None:
    names = [file.name.removesuffix("_config.json") for file in configs.glob("*_config.json")]
    models = [name for name in names if not name.endswith("_hf_quant")]
    refusals = {name: text for name in models if (text := _refusal(_request(configs, name, max_model_len=8192)))}
    assert len(models) >= 80
    assert [text for text in refusals.values() if "the layer kind" not in text or "\n" in text] == []
    assert [name for name in refusals if "DeepSeek-V4" not in name] == []
