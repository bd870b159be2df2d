"""The origin of a result: program, command line, deployment, seed and input files."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import isfile  # which takes any text for a path
from typing import Any

from blis_sim.options.option import Setting, options_of

_AT_ONCE = 1 << 20
_SECRETS = frozenset({"api_key", "header", "redact", "tenant_salt"})
"""Settings whose values belong in no file."""
_QUERY = re.compile(r"(\w://[^?]*)\?.*", re.DOTALL)
"""The query of a URL, which may hold a key, behind all before it. No URL of ours has a user."""


def run_title(
    *,
    model: str,
    gpu: str = "",
    gpus_per_instance: int | None = None,
    instances: int | None = None,
    engine: str = "",
    latency_model: str = "",
    sureness: str = "",
) -> str:
    """Return model, GPUs, engine, latency model and its expected error in one line; only the model must be known."""
    parts = []
    if gpu:
        num_gpus = f"{gpus_per_instance} x " if gpus_per_instance else ""
        times = f"{instances} instances of " if (instances or 1) > 1 else ""
        parts.append(f"{model} on {times}{num_gpus}{gpu}")
    elif model:
        parts.append(model)
    if engine:
        parts.append(f"{engine} engine")
    if latency_model:
        error = f" ({sureness})" if sureness else ""
        parts.append(f"{latency_model} step times{error}")
    return ", ".join(parts)


def blis_version() -> str:
    """Return the version of the installed distribution."""
    from importlib.metadata import version  # takes 10 ms to load, which runs without a file of results do not need

    return version("blis-mockserve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of a result. Fields without a meaning for a command keep their defaults."""

    blis_version: str = field(default_factory=blis_version)
    command: str
    """A command line that gives this result again."""
    model: str = ""
    gpu: str = ""
    gpus_per_instance: int | None = None
    instances: int | None = None
    engine: str = ""
    latency_model: str = ""
    step_error: float | None = None
    """The expected error of the time between tokens as a share of it."""
    sureness: Mapping[str, Any] = field(default_factory=dict)
    """The whole statement on the errors to expect: by metric, what they were measured on, and both as `text`."""
    seed: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each input file, by the name under which it was given."""

    @property
    def title(self) -> str:
        """Return model, GPUs, engine and latency model in one line."""
        return run_title(
            model=self.model,
            gpu=self.gpu,
            gpus_per_instance=self.gpus_per_instance,
            instances=self.instances,
            engine=self.engine,
            latency_model=self.latency_model,
            sureness=self.sureness.get("summary", ""),
        )

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Return the known fields as pairs of a name and a text for people."""
        known = {
            "command": self.command,
            "blis": self.blis_version,
            "model": self.model,
            "GPU": f"{self.gpus_per_instance} x {self.gpu}" if self.gpus_per_instance else self.gpu,
            "instances": "" if self.instances is None else str(self.instances),
            "engine": self.engine,
            "latency model": self.latency_model,
            "expected error": self.sureness.get("text", ""),
            "seed": "" if self.seed is None else str(self.seed),
            **{path: f"SHA-256 {digest}" for path, digest in self.inputs.items()},
        }
        return [(name, value) for name, value in known.items() if value]


def command_line(program: str, options: Any) -> str:
    """Return the command line of these options, without those that are the default."""
    words, arguments = program.split(), []
    for setting in options_of(type(options)):
        value = setting.of(options)
        if value == setting.default or value is None:
            continue
        if setting.option.positional and (setting.option.metavar or "").startswith("-- "):
            arguments += [f"-- {each}" for each in value]  # each is a command line of its own
        else:
            words += flag_words(setting, value)
    return " ".join([shlex.join(_QUERY.sub(r"\1", word) for word in words), *arguments])


def flag_words(setting: Setting, value: Any) -> list[str]:
    """Return the words of a command line that give a setting this value; secrets are left out."""
    if setting.name in _SECRETS:
        return [setting.flags[0], "..."]
    if setting.kind is bool:
        return [setting.flags[0] if value else setting.spellings[-1]]
    if setting.is_list:
        texts = [str(each) for each in value] if setting.is_repeated else [",".join(map(str, value))]
    else:
        texts = [str(value)]
    return texts if setting.option.positional else [word for text in texts for word in (setting.flags[0], text)]


def input_hashes(options: Any, also_read: Iterable[object] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file that a setting names and that is not written, and of those also read."""
    found = {path: _sha256(path) for path in dict.fromkeys((*_read(options), *map(str, also_read))) if isfile(path)}
    return dict(sorted(found.items()))


def _read(options: Any) -> Iterator[str]:
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.option.writes or not value:
            continue
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, str))


def _sha256(path: str) -> str:
    import hashlib  # takes 5 ms to load, which a title does not need

    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_AT_ONCE):
                digest.update(block)
    except OSError:
        return "unreadable"
    return digest.hexdigest()
