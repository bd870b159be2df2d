"""The environment variables of vLLM."""

import pytest

from blis_sim.options import OptionError
from mockserve.options.environment import ServerEnvironment, read_environment


def test_an_empty_environment_sets_nothing() -> None:
    assert read_environment({}) == ServerEnvironment()


def test_variables_are_read_as_vllm_reads_them() -> None:
    found = read_environment(
        {
            "VLLM_API_KEY": "k",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7",
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "h",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "1",
            "PYTHONHASHSEED": "0",
            "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
            "VLLM_LOGGING_LEVEL": "debug",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
            "VLLM_LOG_STATS_INTERVAL": "2.5",
        }
    )
    assert found == ServerEnvironment("k", True, True, True, 7, False, "h", 1, "0", True, True, True, 2.5)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf"])
def test_an_interval_that_is_no_time_is_the_default(text: str) -> None:
    assert read_environment({"VLLM_LOG_STATS_INTERVAL": text}).log_stats_interval_s == 10


def test_a_value_that_is_no_number_is_named() -> None:
    with pytest.raises(OptionError, match=r"^VLLM_LOG_STATS_INTERVAL must be a number of seconds, got 'often'$"):
        read_environment({"VLLM_LOG_STATS_INTERVAL": "often"})
    with pytest.raises(OptionError, match=r"^VLLM_SERVER_DEV_MODE must be a whole number, got 'yes'$"):
        read_environment({"VLLM_SERVER_DEV_MODE": "yes"})
