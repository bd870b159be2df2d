"""A port that several processes listen on: the kernel shares connections out among them."""

import socket

from blis_sim.options import OptionError


def reserved_port(host: str, port: int) -> socket.socket:
    """A socket that holds `port`, or a free one for 0, for those who are to listen there. It does not listen itself.

    Raises OptionError when somebody else listens there, or nobody can.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise OptionError("--api-server-count must be 1: processes cannot share a port on this system")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if port:
            # Whoever shares its port could be joined without noticing.
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        holder = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot(host, port, error) from error
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
    except OSError as error:
        holder.close()
        raise _cannot(host, port, error) from error
    return holder


def _cannot(host: str, port: int, error: OSError) -> OptionError:
    return OptionError(f"cannot listen on {host}:{port}: {error.strerror or error}")
