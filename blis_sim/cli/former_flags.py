"""Flags of earlier versions, which stay for one minor release."""

from collections.abc import Iterator, Sequence

from blis_sim.options import options_of


def with_present_flags(options_class: type, arguments: Sequence[str], notes: list[str]) -> Iterator[str]:
    """The arguments with the present name of each flag; `notes` gets a line for each former one."""
    present = {former: each.flags[0] for each in options_of(options_class) for former in each.former_flags}
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag in present:
            notes.append(f"{flag} is the former name of {present[flag]}")
            yield f"{present[flag]}{equals}{value}"
        else:
            yield argument
