"""CPU memory and tiers of --kv-transfer-config: what is modelled, and what is named at the start."""

import json
from typing import Any

import pytest

from blis_sim.options import OptionError
from mockserve.options.engine_features import TransferConfig, read_transfer_config
from mockserve.options.startup_checks import warnings_of_connector

GIB = 2**30


def transfer(connector: str, **extra: Any) -> TransferConfig:
    given = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return read_transfer_config(json.dumps(given))


def child(connector: str, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def test_a_multi_connector_has_the_cpu_memory_of_its_first_store() -> None:
    children = [
        child("NixlConnector"),
        child("OffloadingConnector", cpu_bytes_to_use=3 * GIB),
        child("SimpleCPUOffloadConnector"),
    ]
    found = transfer("MultiConnector", connectors=children)
    assert (found.offloaded_gib, found.has_store) == (3.0, True)
    assert found.others == ("NixlConnector", "SimpleCPUOffloadConnector")
    (warning,) = warnings_of_connector(found)
    assert warning == (
        "warning: the store of SimpleCPUOffloadConnector in MultiConnector is not modelled: no block is found there"
    )


def test_tiers_behind_cpu_memory_are_named_at_the_start() -> None:
    tiers = [{"type": "fs", "root_dir": "/tmp/kv"}, {"type": "obj"}]
    found = transfer(
        "OffloadingConnector", spec_name="TieringOffloadingSpec", cpu_bytes_to_use=GIB, secondary_tiers=tiers
    )
    assert found.has_store
    (warning,) = warnings_of_connector(found)
    assert warning == "warning: secondary_tiers (fs, obj) are not modelled: KV blocks that leave CPU memory are lost"


def test_a_modelled_store_needs_no_warning() -> None:
    assert list(warnings_of_connector(transfer("OffloadingConnector", cpu_bytes_to_use=GIB))) == []
    children = [child("NixlConnector"), child("OffloadingConnector", cpu_bytes_to_use=GIB)]
    assert list(warnings_of_connector(transfer("MultiConnector", connectors=children))) == []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "connectors of kv_connector_extra_config must be a list of configurations, got None"),
        ({"connectors": []}, "must be a list of configurations, got "),
        ({"connectors": [3]}, "must each name a kv_connector, got 3"),
        ({"connectors": [{"kv_connector": "x", "kv_connector_extra_config": 3}]}, "must each name a kv_connector"),
        ({"connectors": [child("OffloadingConnector", secondary_tiers=3)]}, "secondary_tiers must be a list of tier"),
    ],
)
def test_what_vllm_cannot_read_is_refused(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        transfer("MultiConnector", **extra)
