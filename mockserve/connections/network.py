"""What replies carry for the sake of connections, whatever they say."""

from collections.abc import Mapping
from dataclasses import dataclass

from mockserve.connections.cors import Cors, new_cors
from mockserve.options.serve import ServeOptions

SERVER_NAME = "uvicorn"
"""What vLLM's server calls itself."""


@dataclass(frozen=True, slots=True)
class Network:
    """What every reply must know of the settings of connections."""

    root_path: str
    cors: Cors
    adds_request_ids: bool
    further_headers: Mapping[str, str]


def network_of(options: ServeOptions) -> Network:
    """As the options say."""
    return Network(
        root_path=options.root_path.rstrip("/"),
        cors=new_cors(
            options.allowed_origins, options.allowed_methods, options.allowed_headers, options.allow_credentials
        ),
        adds_request_ids=options.enable_request_id_headers,
        further_headers=dict(header.split("=", 1) for header in options.pod_headers),
    )
