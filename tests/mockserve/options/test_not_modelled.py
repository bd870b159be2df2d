"""Flags that vLLM's timing depends on and ours does not are warned about."""

from blis_sim.options import options_from, options_of
from mockserve.options.serve import ServeOptions
from mockserve.options.startup_checks import ASSUMED, warnings_of
from mockserve.server import _notes
from mockserve.vllm_arguments.table import read_table


def test_every_flag_that_is_not_modelled_is_one_of_vllm_and_none_that_acts() -> None:
    table = read_table()
    own = {flag for setting in options_of(ServeOptions) for flag in setting.flags}
    assert [flag for flag in ASSUMED if flag not in table or table[flag].name != flag] == []
    assert own.isdisjoint(ASSUMED)


def test_a_warning_says_what_is_assumed() -> None:
    assert list(warnings_of(["--seed", "--enable-dbo"])) == [
        "warning: --enable-dbo is not modelled: a step is one batch"
    ]


def test_a_connector_with_a_store_is_warned_about() -> None:
    def notes(connector: str) -> list[str]:
        transfer = f'{{"kv_connector": "{connector}", "kv_role": "kv_both"}}'
        return _notes(options_from(ServeOptions, model_argument="m", kv_transfer_config=transfer))

    assert notes("NixlConnector") == []
    assert notes("LMCacheConnectorV1") == [
        "warning: the store of LMCacheConnectorV1 is not modelled: KV blocks that are evicted are lost, and other "
        "instances find none"
    ]


def test_the_server_names_flags_without_effect_apart_from_those_that_are_not_modelled() -> None:
    options = ServeOptions(model_argument="m", accepted_without_effect=("--enforce-eager", "--load-format"))
    assert _notes(options) == [
        "accepted, without effect here: --load-format",
        "warning: --enforce-eager is not modelled: steps take the time that they take with vLLM's default CUDA graphs",
    ]
