"""Facts of a model folder that gRPC clients request, read when the server starts: its kind and its tokenizer files."""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.options.text import load_json

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.json"),
)
TOKENIZER_PATTERNS = ("*.tiktoken", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model's kind, and a zip archive of its tokenizer files; empty where there is no folder."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    archive: bytes = b""

    @property
    def sha256(self) -> str:
        """The fingerprint of the archive."""
        return hashlib.sha256(self.archive).hexdigest()


def read_facts(folder: str) -> ModelFacts:
    """Return the facts of a model folder; those of a name of the catalogue are empty. Cost: a second per 20 MB."""
    path = Path(folder)
    if not path.is_dir():
        return ModelFacts()
    config = _config(path / "config.json")
    architectures = config.get("architectures")
    return ModelFacts(
        model_type=str(config.get("model_type", "")),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        archive=_archive(path),
    )


def _config(file: Path) -> dict[str, Any]:
    try:
        found = load_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _archive(folder: Path) -> bytes:
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for pattern in TOKENIZER_PATTERNS:
        names += sorted(each.name for each in folder.glob(pattern) if each.is_file() and each.name not in names)
    if not names:
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # A fixed time makes the archive of equal files equal.
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
