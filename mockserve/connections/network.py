"""What replies carry for the sake of connections, whatever they say."""

from collections.abc import Mapping
from dataclasses import dataclass

from mockserve.connections.headers import Cors, new_cors
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

    def route_path(self, path: str) -> str:
        """The path of a route that `path` leads to: without the root path, if it begins with that and a slash.

        vLLM strips the root path without looking for the slash, so that `--root-path /v` lets requests to `/v1/models`
        through without a key. That is not followed.
        """
        root = self.root_path
        is_below = root and (path == root or path.startswith(root + "/"))
        return path[len(root) :] if is_below else path

    def paths_of(self, route_path: str) -> tuple[str, ...]:
        """Where a route is to be found: below the root path, and beside it unless that would be below it as well."""
        if not self.root_path:
            return (route_path,)
        below = self.root_path + route_path
        return (below,) if self.route_path(route_path) != route_path else (route_path, below)


def network_of(options: ServeOptions) -> Network:
    """As the options say."""
    return Network(
        root_path=options.network.root_path.rstrip("/"),
        cors=new_cors(
            options.network.cors.allowed_origins,
            options.network.cors.allowed_methods,
            options.network.cors.allowed_headers,
            options.network.cors.allow_credentials,
        ),
        adds_request_ids=options.network.enable_request_id_headers,
        further_headers=dict(header.split("=", 1) for header in options.process.pod_headers),
    )
