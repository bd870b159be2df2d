"""What a server of several instances cannot do: it is refused at the start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blis_options import OptionError

if TYPE_CHECKING:
    from mockserve.config import ServeOptions


def check_cluster(options: "ServeOptions") -> None:
    """Raise OptionError for settings that do not go with a router in front."""
    if options.serves_cluster:
        for setting in _in_the_way(options):
            raise OptionError(f"{setting} cannot be used with {_cause(options)}")


def _in_the_way(options: "ServeOptions") -> Iterator[str]:
    facts = {
        "--data-parallel-size": options.dp > 1,
        "--api-processes": options.api_processes > 1,
        "--kv-transfer-config": options.kv_transfer.is_on,
    }
    yield from (setting for setting, is_set in facts.items() if is_set)
    if options.instance_ports is not None and options.uds:
        yield "--uds"


def _cause(options: "ServeOptions") -> str:
    if options.num_instances > 1:
        return f"--num-instances {options.num_instances}"
    if options.instance_ports is not None:
        return "--instance-ports"
    return "--enable-instance-control" if options.enable_instance_control else "a router in front"
