"""A model's `generation_config.json`, as --generation-config and --override-generation-config choose and change it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError
from mockserve.content.tokens.file import read_json_object
from mockserve.options.content import ContentOptions, json_object
from mockserve.protocol.asked.sampling import NO_DEFAULTS, SAMPLING_NAMES, GenerationDefaults, raised_temperature

AUTO, NONE = "auto", "vllm"
FILE = "generation_config.json"
OVERRIDE_FLAG = "--override-generation-config"
_MAX_NEW_TOKENS = "max_new_tokens"
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(SAMPLING_NAMES, (int, float)),
    "top_k": (int,),
    "skip_special_tokens": (bool,),
    _MAX_NEW_TOKENS: (int,),
}


def open_generation_defaults(options: ContentOptions, model: str) -> GenerationDefaults:
    """The defaults that the options ask for; `model` may be a folder with a file of them.

    Raises OptionError for a file or a value that makes no sense.
    """
    source = options.generation_config
    config: dict[str, Any] = {}
    if source != NONE:
        folder = Path(model if source == AUTO else source)
        if source != AUTO and not (folder / FILE).is_file():
            raise OptionError(f"--generation-config must be auto, vllm or a folder with a {FILE}, got {source!r}")
        config = read_json_object(folder / FILE, "--generation-config")
        _check(str(folder / FILE), config)
    override = json_object(OVERRIDE_FLAG, options.override_generation_config)
    _check(OVERRIDE_FLAG, override)
    config |= override
    if not config:
        return NO_DEFAULTS
    max_tokens = config.get(_MAX_NEW_TOKENS)
    sampling = {name: config[name] for name in SAMPLING_NAMES if config.get(name) is not None}
    if "temperature" in sampling:
        sampling["temperature"] = raised_temperature(float(sampling["temperature"]))
    is_own_choice = source not in (AUTO, NONE)
    return GenerationDefaults(sampling, max_tokens, max_tokens if is_own_choice else override.get(_MAX_NEW_TOKENS))


def _check(where: str, config: Mapping[str, Any]) -> None:
    for name, kinds in _KINDS.items():
        value = config.get(name)
        is_wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if value is not None and is_wrong:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise OptionError(f"{where}: {name} must be {names}, got {value!r}")
    max_tokens = config.get(_MAX_NEW_TOKENS)
    if max_tokens is not None and max_tokens < 1:
        raise OptionError(f"{where}: {_MAX_NEW_TOKENS} must be at least 1, got {max_tokens}")
