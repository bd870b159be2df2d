"""Bodies of the routes about adapters and weights, with vLLM's names and order of fields."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from mockserve.protocol.bodies import BodyT, Entries, Items, RequestObject, read_as
from mockserve.protocol.errors import Problem, bad_fields
from mockserve.protocol.json_text import json_value


class LoadLoRAAdapterRequest(RequestObject):
    """An adapter to load."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadLoRAAdapterRequest(RequestObject):
    """An adapter to unload."""

    lora_name: str
    lora_int_id: int | None = None


class WeightTransferSettings(RequestObject):
    """The settings of a transfer of weights."""

    init_info: dict[str, Any]


class WeightUpdate(RequestObject):
    """Weights of one worker, or of each."""

    update_info: dict[str, Any] | Items[dict[str, Any]]


class FinishedUpdate(RequestObject):
    """The version of the new weights."""

    weight_version: str | None = None


class WeightVersion(RequestObject):
    """The version of the present weights."""

    new_version: str


class WeightCheck(RequestObject):
    """The use of checksums of the weights."""

    action: Literal["checksum", "reset", "compare"]
    baseline: Entries[str] | None = None


def read_embedded(raw: bytes, is_json: bool, kind: type[BodyT]) -> BodyT:
    """Return a body whose fields vLLM reads one by one. Raises ApiError naming missing or invalid fields."""
    body = json_value(raw) if raw and is_json else None
    if body is not None and not isinstance(body, dict):
        raise bad_fields([Problem("missing", f"body.{name}", "Field required", None) for name in kind.model_fields])
    given = {name: value for name in kind.model_fields if (value := (body or {}).get(name)) is not None}
    return read_as(kind, given, shows_body=False)


def _not_empty(text: str, field: ValidationInfo) -> str:
    if not text:
        raise ValueError(f"The parameter {field.field_name} cannot be an empty string")
    return text


class SageMakerRegisterLoRAAdapterRequest(RequestObject):
    """An adapter to load, as SageMaker names it."""

    name: Annotated[str, AfterValidator(_not_empty)]
    src: Annotated[str, AfterValidator(_not_empty)]
    preload: bool = True
    pin: bool = False


def registration_problems(given: Any, shown: Any) -> list[dict[str, Any]]:
    """Return pydantic's errors of an adapter to register; errors about missing fields show `shown`."""
    try:
        SageMakerRegisterLoRAAdapterRequest.model_validate(given)
    except ValidationError as error:
        return [_as_json(each, shown) for each in error.errors(include_url=False)]
    return []


def _as_json(error: ErrorDetails, shown: Any) -> dict[str, Any]:
    found: dict[str, Any] = {**error, "loc": list(error["loc"])}
    if error["type"] == "missing":
        found["input"] = shown
    if error["type"] == "value_error":
        found["ctx"] = {"error": str(error["ctx"]["error"])}
    return found
