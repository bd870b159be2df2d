"""Command lines that hold the flags of two commands: one's own, and those of the simulation that it repeats."""

from collections.abc import Sequence

from blis_sim.options import OptionError, options_of


def own_flags_first(arguments: Sequence[str], options_class: type) -> list[str]:
    """The arguments with those of `options_class` in front, and all others behind `--`, as positional arguments.

    Raises OptionError for a flag whose value is missing.
    """
    settings = [setting for setting in options_of(options_class) if not setting.option.positional]
    valued = {flag for each in settings if each.kind is not bool for flag in each.flags}
    switches = {flag for each in settings if each.kind is bool for flag in each.spellings} | {"--help"}
    own, others = [], []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        spelling, has_value, _ = argument.partition("=")
        if spelling in switches:
            own.append(argument)
        elif spelling in valued:
            if not has_value and not rest:
                raise OptionError(f"{spelling} must be given a value")
            own += [argument] if has_value else [argument, *rest[:1]]
            rest = rest if has_value else rest[1:]
        elif argument != "--":
            others.append(argument)
    return [*own, "--", *others]
