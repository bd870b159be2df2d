"""Every flag of `vllm serve` acts, changes nothing to see, or is warned about with what is assumed."""

from collections import Counter
from pathlib import Path

import pytest

from blis_sim.options import OptionError, options_from
from blis_sim.options.command_line import CONFIG_FLAG as CONFIG_FILE
from blis_sim.options.command_line import flags_of
from mockserve.command import rewritten
from mockserve.options import vllm_flags
from mockserve.options.serve import ServeOptions
from mockserve.options.startup_checks import warnings_of
from mockserve.options.vllm_flags import ACTS, UNSEEN, VllmFlag, read_table
from mockserve.server import _notes

FLAGS_OF_VLLM = 320
"""Flags of the parser of `vllm serve` 0.33, but for --help."""


def every_flag() -> list[VllmFlag]:
    return list({flag.name: flag for flag in read_table().values()}.values())


def test_the_table_has_every_flag_of_vllm_once() -> None:
    spellings = Counter(spelling for flag in every_flag() for spelling in flag.spellings)
    assert len(every_flag()) == FLAGS_OF_VLLM
    assert max(spellings.values()) == 1


def test_a_flag_acts_exactly_when_the_server_has_it() -> None:
    own = flags_of(ServeOptions) | {CONFIG_FILE}
    assert [flag.name for flag in every_flag() if (flag.here == ACTS) != bool(own.intersection(flag.spellings))] == []


def test_a_row_that_says_acts_without_a_field_of_that_name_keeps_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "flags.csv"
    table.write_text(vllm_flags.TABLE.read_text() + "--enable-turbo-mode,pair,,,the engine,acts\n")
    monkeypatch.setattr(vllm_flags.read_table, "__defaults__", (table,))
    expected = "flags.csv: --enable-turbo-mode acts by its row, but no field of the options has this name"
    with pytest.raises(OptionError, match=expected):
        rewritten(["m"])


def test_every_flag_is_in_one_of_three_tables() -> None:
    sizes = Counter(
        ACTS if flag.here == ACTS else UNSEEN if flag.here == UNSEEN else "assumed" for flag in every_flag()
    )
    assert sum(sizes.values()) == FLAGS_OF_VLLM
    assert min(sizes.values()) > 50


def test_every_flag_that_is_not_modelled_is_warned_about_with_what_is_assumed() -> None:
    missing = [flag.name for flag in every_flag() if flag.is_not_modelled]
    warnings = list(warnings_of(missing))
    assert len(warnings) == len(missing)
    assert all(line.startswith("warning: --") and len(line.split(" is not modelled: ")[1]) > 10 for line in warnings)


def test_flags_about_logs_and_loading_are_unseen() -> None:
    unseen = {flag.name for flag in every_flag() if flag.here == UNSEEN}
    assert {"--load-format", "--download-dir", "--log-level", "--master-addr", "--trust-remote-code"} <= unseen


def test_a_warning_names_the_assumption() -> None:
    assert list(warnings_of(["--load-format", "--attention-backend"])) == [
        "warning: --attention-backend is not modelled: kernels are those that vLLM takes by default"
    ]


def test_the_server_names_unseen_flags_apart_from_those_that_are_not_modelled() -> None:
    options = ServeOptions(model_argument="m", accepted_without_effect=("--attention-backend", "--load-format"))
    assert _notes(options) == [
        "accepted, without effect here: --load-format",
        "warning: --attention-backend is not modelled: kernels are those that vLLM takes by default",
    ]


def test_a_connector_whose_store_is_not_modelled_is_warned_about() -> None:
    def notes(connector: str, extra: str = "{}") -> list[str]:
        transfer = f'{{"kv_connector": "{connector}", "kv_role": "kv_both", "kv_connector_extra_config": {extra}}}'
        return _notes(options_from(ServeOptions, model_argument="m", kv_transfer_config=transfer))

    assert notes("NixlConnector") == []
    assert notes("OffloadingConnector", '{"cpu_bytes_to_use": 1000000000}') == []
    assert notes("SimpleCPUOffloadConnector") == []
    assert notes("MooncakeStoreConnector") == [
        "warning: the store of MooncakeStoreConnector is not modelled: KV blocks that are evicted are lost, and other "
        "instances find none"
    ]
    assert notes("LMCacheConnectorV1") == [
        "warning: the store of LMCacheConnectorV1 is modelled as CPU memory of this server alone: other instances find "
        "none of its KV blocks"
    ]
