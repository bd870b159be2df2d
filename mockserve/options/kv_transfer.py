"""`--kv-transfer-config`: the JSON object that vLLM takes."""

import uuid
from dataclasses import dataclass

from blis_sim.options import OptionError
from blis_sim.options.json_text import load_json

FLAG = "--kv-transfer-config"
ROLES = ("kv_producer", "kv_consumer", "kv_both")


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """What of vLLM's configuration matters here."""

    connector: str
    engine_id: str

    @property
    def is_on(self) -> bool:
        return bool(self.connector)


def read_transfer_config(text: str) -> TransferConfig:
    """The configuration in a JSON object, off for an empty text. Raises OptionError for what vLLM would refuse."""
    if not text:
        return TransferConfig("", "")
    try:
        given = load_json(text)
    except ValueError as error:
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}") from error
    if not isinstance(given, dict):
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}")
    connector, role = given.get("kv_connector"), given.get("kv_role")
    if not isinstance(connector, str) or not connector:
        raise OptionError(f"{FLAG}: kv_connector must name a connector, got {connector!r}")
    if role not in ROLES:
        raise OptionError(f"{FLAG}: kv_role must be one of {', '.join(ROLES)}, got {role!r}")
    return TransferConfig(connector, str(given.get("engine_id") or uuid.uuid4()))
