"""The keys of an InferenceService of KServe by the models of its Python SDK (kserve 0.21, Apache-2.0).

`python -m tests.docker.kserve_keys kserve-0.21.0-py3-none-any.whl` writes the table `kserve_keys.csv` anew.
"""

import ast
import csv
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("kserve_keys.csv")
MODELS = ("v1beta1_inference_service", "v1beta1_inference_service_spec", "v1beta1_predictor_spec")
_SCALARS: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}


def keys_of(wheel: zipfile.ZipFile, model: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a model as files have them, with their types."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(wheel.read(f"kserve/models/{model}.py"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="openapi_types" | "attribute_map" as name)], value=value):
                found[name] = ast.literal_eval(value)
            case _:
                pass
    for name, kind in found["openapi_types"].items():
        yield found["attribute_map"][name], kind


def write_table(path: str) -> None:
    """Write the table from a wheel of KServe's SDK."""
    with zipfile.ZipFile(path) as wheel, TABLE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("model", "key", "type"))
        rows.writerows((model, key, kind) for model in MODELS for key, kind in keys_of(wheel, model))


def table() -> dict[str, dict[str, str]]:
    """Return the type of each key by model."""
    found: dict[str, dict[str, str]] = {model: {} for model in MODELS}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["model"]][row["key"]] = row["type"]
    return found


def faults(service: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of an InferenceService that KServe does not know, and values of a wrong type."""
    known = table()
    spec = service.get("spec", {})
    for model, given in zip(MODELS, (service, spec, spec.get("predictor", {})), strict=True):
        for key, value in given.items():
            kind = known[model].get(key)
            if kind is None:
                yield f"{model}: unknown key {key}"
            elif (
                kind in _SCALARS
                and (not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"))
            ) or (kind.startswith("list[") != isinstance(value, list) and kind not in _SCALARS):
                yield f"{model}: {key} must be {kind}, got {value!r}"


if __name__ == "__main__":
    write_table(sys.argv[1])
