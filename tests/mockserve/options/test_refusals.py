"""Settings that several processes cannot have together are refused in one line."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from, with_settings
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions, check_processes

TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
EVENTS = '{"enable_kv_cache_events": true, "publisher": "zmq"}'


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"uds": "/tmp/x.sock"}, "--uds"),
        ({"enable_scale_out": True}, "--enable-scale-out"),
        ({"tokens_only": True}, "--tokens-only"),
        ({"kv_transfer_config": TRANSFER}, "--kv-transfer-config"),
        ({"kv_events_config": EVENTS}, "--kv-events-config"),
    ],
)
def test_a_flag_in_the_way_is_named(settings: dict[str, Any], what: str) -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", api_server_count=2, **settings)
    with pytest.raises(OptionError, match=f"^--api-server-count must be 1 with {what}, got 2$"):
        check_processes(options, ServerEnvironment())
    check_processes(with_settings(options, api_server_count=1), ServerEnvironment())


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("VLLM_SERVER_DEV_MODE", "dev_mode"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "allows_runtime_lora"),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "stores_responses"),
    ],
)
def test_a_variable_in_the_way_is_named(variable: str, field: str) -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", api_server_count=2)
    environment = dataclasses.replace(ServerEnvironment(), **{field: True})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=f"^--api-server-count must be 1 with {variable}, got 2$"):
        check_processes(options, environment)


def test_tls_and_data_parallel_ranks_are_accepted_in_several_processes() -> None:
    certificate = str(Path("certificate.pem"))
    options = options_from(ServeOptions, model="qwen/qwen3-14b", api_server_count=8, dp=2, ssl_certfile=certificate)
    check_processes(options, ServerEnvironment())
