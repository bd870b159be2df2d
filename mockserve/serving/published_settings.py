"""The settings of the simulated engine and of its cluster, as the replay of a recording needs them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from blis_sim.engine.cluster.options import ClusterOptions, path_in
from blis_sim.engine.lora import LoraOptions
from blis_sim.options import options_of
from blis_sim.options.option import Setting
from mockserve.engines import simulated_deployment
from mockserve.options.engine_features import TimingOptions
from mockserve.options.faults import FaultOptions
from mockserve.options.serve import ServeOptions

_FAULTS = frozenset(("fault_rates", "fault_engine"))
"""Settings of faults that change the times of requests."""


def published_settings(options: ServeOptions, gpu: str, tp: int) -> Mapping[str, Any]:
    """Return settings that are not defaults, by the names that a replay takes, and the names of those it must be given.

    No path of this machine is published: files are represented by their names.
    """
    simulated = replace(options.cluster, deployment=simulated_deployment(options))
    found: dict[str, object] = {"hardware": gpu, "tp": tp}
    others: dict[str, str] = {}
    for setting, value in _given_settings(simulated, ClusterOptions):
        if setting.name in found:
            continue
        if (path := path_in(setting.name, value)) is not None:
            others[setting.name] = PurePath(path).name
        elif setting.name != "model" or value != options.deployment.model:
            found[setting.name] = list(value) if isinstance(value, tuple) else value
    if options.lora.enable_lora:
        found |= {setting.name: value for setting, value in _given_settings(options.lora, LoraOptions)}
    others |= {setting.name: "" for setting, _ in _given_settings(options.timing, TimingOptions)}
    others |= {
        setting.name: "" for setting, _ in _given_settings(options.faults, FaultOptions) if setting.name in _FAULTS
    }
    if simulated.deployment.kv_devices:  # settings of a file alone describe devices
        found.pop("kv_offloading_size", None)
        others["kv_offload_config"] = PurePath(options.offload.kv_offload_config or "").name
    speed = None if math.isinf(options.speed) else options.speed
    return {"engine_settings": found, "other_settings": others, "speed": speed}


def _given_settings(options: object, kind: type) -> Iterator[tuple[Setting, Any]]:
    """Yield the settings of a class that have another value than their default in `options`, with these values."""
    own = {setting.name: setting for setting in options_of(type(options))}
    for setting in options_of(kind):
        value = own[setting.name].of(options)
        if value != setting.default:
            yield setting, value
