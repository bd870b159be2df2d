"""CPU memory and tiers of --kv-transfer-config: what is modelled, what is named at the start, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.engines import deployment_of
from mockserve.options.engine_features import TransferConfig, read_transfer_config
from mockserve.options.serve import ServeOptions
from mockserve.options.startup_checks import warnings_of_connector
from mockserve.serving.published_settings import published_settings

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


def test_tiers_in_file_systems_are_devices_and_others_are_named_at_the_start() -> None:
    tiers = [
        {"type": "fs", "root_dir": "/tmp/kv", "n_read_threads": 2},
        {"type": "fs", "root_dir": "/tmp/s", "device_class": "sata_ssd", "backpressure": {}},
        {"type": "obj"},
    ]
    found = transfer(
        "OffloadingConnector", spec_name="TieringOffloadingSpec", cpu_bytes_to_use=GIB, secondary_tiers=tiers
    )
    assert found.has_store
    assert [(each.read_bytes_us, each.num_readers, each.num_writers) for each in found.devices] == [
        (7000.0, 2, 16),
        (550.0, 16, 16),
    ]
    (warning,) = warnings_of_connector(found)
    assert warning == (
        "warning: secondary_tiers are modelled but for backpressure, obj: tiers of type fs keep KV blocks that leave "
        "CPU memory, each on the device that device_class names"
    )


def test_a_multi_connector_has_the_tiers_of_its_first_store() -> None:
    own = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/tmp/kv"}]}
    children = [child("NixlConnector"), child("OffloadingConnector", cpu_bytes_to_use=GIB, **own)]
    found = transfer("MultiConnector", connectors=children)
    assert (len(found.devices), list(warnings_of_connector(found))) == (1, [])


def test_specifications_other_than_the_tiering_one_ignore_tiers() -> None:
    found = transfer("OffloadingConnector", cpu_bytes_to_use=GIB, secondary_tiers=[{"type": "fs", "root_dir": "/tmp"}])
    assert (found.devices, found.tiers) == ((), ())


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ({"root_dir": "/tmp"}, r"type of secondary_tiers\[0\] must name a tier, got None, vLLM has example, fs"),
        ({"type": "disk"}, "must name a tier, got 'disk'"),
        ({"type": "fs", "threads": 3}, "unknown key 'threads'"),
        ({"type": "fs", "n_read_threads": 0}, "n_read_threads: expected a whole number between 1"),
        ({"type": "fs", "locality": "near"}, "locality: expected LOCAL or REMOTE, got 'near'"),
        ({"type": "fs", "read_bandwidth": 5}, "device_class, or read_bandwidth, write_bandwidth and base_latency"),
    ],
)
def test_a_tier_that_vllm_cannot_read_is_refused(tier: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        transfer("OffloadingConnector", spec_name="TieringOffloadingSpec", cpu_bytes_to_use=GIB, secondary_tiers=[tier])


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


SPEC = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/tmp/kv"}]}


def served(**settings: Any) -> ServeOptions:
    return options_from(ServeOptions, model="qwen/qwen3-14b", total_kv_blocks=4000, **settings)


def test_a_server_has_the_devices_of_its_connector() -> None:
    extra = {"cpu_bytes_to_use": GIB, **SPEC}
    text = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    options = served(kv_transfer_config=json.dumps(text))
    offload = deployment_of(options).config.offload
    assert offload is not None
    assert (offload.num_blocks, [each.read_bytes_us for each in offload.devices]) == (409, [7000.0])
    assert offload.stored_bytes == GIB // 409 // 2**16 * 2**16
    published = published_settings(options, "H100", 1)
    assert "kv_offload_config" in published["other_settings"], "a replay has to be given the devices"
    assert "kv_offloading_size" not in published["engine_settings"]


@pytest.mark.parametrize("engine", ["vllm", "blis"])
def test_a_server_has_the_devices_of_a_file(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "offload.yaml"
    tier = "{type: fs, direct_io: true, device_class: sata_ssd}"
    path.write_text(f"kv_offload: {{cpu_bytes_to_use: {GIB}, secondary_tiers: [{tier}]}}\n")
    config = deployment_of(served(engine=engine, kv_offload_config=str(path), seed=7)).config
    found = config.offload if engine == "vllm" else config.offload_chain
    assert found is not None
    assert ([each.read_bytes_us for each in found.devices], found.seed) == ([550.0], 7)


def test_tensor_parallel_gpus_have_one_file_for_a_block() -> None:
    extra = {"cpu_bytes_to_use": GIB, **SPEC}
    text = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    offload = deployment_of(served(tp=2, kv_transfer_config=json.dumps(text))).config.offload
    assert offload is not None
    assert offload.stored_bytes == 2 * offload.block_bytes
