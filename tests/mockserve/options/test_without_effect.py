from typing import Any

import pytest

from blis_sim.options import OptionError, options_from, options_of
from mockserve.options.engine_features import TimingOptions
from mockserve.options.serve import ServeOptions
from mockserve.options.startup_checks import flags_without_effect


@pytest.mark.parametrize(
    ("given", "notes"),
    [
        ({}, []),
        ({"max_loras": 2}, ["--max-loras has no effect without --enable-lora"]),
        ({"max_loras": 2, "enable_lora": True}, []),
        ({"default_reasoning_tokens": 9}, ["--default-reasoning-tokens has no effect without --reasoning-parser"]),
        ({"default_reasoning_tokens": 9, "reasoning_parser": "qwen3"}, []),
        ({"kv_transfer_latency_ms": 3.0}, ["--kv-transfer-latency-ms has no effect without --kv-transfer-config"]),
        ({"enable_logging_iteration_details": True}, []),
        (
            {"enable_logging_iteration_details": True, "disable_log_stats": True},
            ["--enable-logging-iteration-details has no effect with --disable-log-stats"],
        ),
        (
            {"enable_logging_iteration_details": True, "engine": "adaptive"},
            ["--enable-logging-iteration-details has no effect with --engine adaptive, which reports no batches"],
        ),
        (
            {"enable_logging_iteration_details": True, "latency_calculator": "constant"},
            ["--enable-logging-iteration-details has no effect with --latency-calculator: set times have no steps"],
        ),
        ({"dataset_table_name": "t"}, ["--dataset-table-name has no effect without --dataset-path"]),
    ],
)
def test_flags_that_lack_another_one_are_noted(given: dict[str, Any], notes: list[str]) -> None:
    assert list(flags_without_effect(options_from(ServeOptions, model="m", **given))) == notes


@pytest.mark.parametrize("name", ["time_to_first_token_ms", "prefill_time_per_token_ms", "time_factor_under_load"])
def test_a_set_time_is_refused_where_the_engine_finds_them(name: str) -> None:
    assert name in {setting.name for setting in options_of(TimingOptions)}
    flag = f"--{name.replace('_', '-')}"
    given: Any = {name: 20.0}
    with pytest.raises(OptionError, match=f"^{flag} needs --latency-calculator constant or per-token$"):
        options_from(ServeOptions, model="m", **given)
    options_from(ServeOptions, model="m", latency_calculator="constant", **given)
