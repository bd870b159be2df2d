"""The model list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One card of the list: a name of the base model, or an adapter, whose `parent` is the base model."""

    name: str
    root: str
    parent: str | None = None
    max_model_len: int | None = None


def model_list(models: Sequence[ServedModel], created: int, permission_ids: Sequence[str]) -> dict[str, Any]:
    """One card per model. `permission_ids` are what follows `modelperm-`."""
    cards = [_card(model, created, permission) for model, permission in zip(models, permission_ids, strict=True)]
    return {"object": "list", "data": cards}


def _card(model: ServedModel, created: int, permission_id: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{permission_id}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
        "permission": [permission],
    }
