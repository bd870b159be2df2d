"""`blis compare`: the same requests through two or more configurations, side by side."""

import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING

from blis_sim.bench.compare_options import CompareOptions
from blis_sim.options.option import OptionError, options_of
from blis_sim.options.printing import TABLE, print_note, printed_format

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance

_print_note = partial(print_note, "blis compare")


def rewritten(arguments: list[str]) -> list[str]:
    """A command line in which the flags after each `--` are one argument."""
    parts: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            parts.append([])
        else:
            parts[-1].append(argument)
    own, *sides = parts
    for argument in own:
        _check_own_flag(argument.partition("=")[0])
    return [*own, "--", *(shlex.join(side) for side in sides)] if sides else own


def _check_own_flag(flag: str) -> None:
    """Refuse a flag of a configuration before the first `--`. Raises OptionError."""
    if not flag.startswith("--") or any(flag in each.spellings for each in options_of(CompareOptions)):
        return
    from blis_sim.engine.cluster.options import ClusterOptions  # a flag of the command does without it

    if any(flag in each.spellings for each in options_of(ClusterOptions)):
        raise OptionError(f"{flag} describes a configuration: it must stand behind the -- of each that it is for")


def run(options: CompareOptions) -> int:
    """Simulate all configurations with the same requests, print the table and write requested files.

    Exit codes: 0 done, 1 no configuration meets the targets.
    """
    from blis_sim.bench.comparison import (
        comparison_report,
        judgements_of,
        judging_of,
        play,
        sides_of,
        simulate_configuration,
        workload_of,
    )

    sides, uncovered = sides_of(options)
    for side in sides:
        for note in side.notes:
            _print_note(f"{side.name}: {note}")
    runs, judging = [], judging_of(options)
    form = printed_format(options)
    for number in range(options.repeat):
        requests = workload_of(options, number)
        runs.append([simulate_configuration(side, requests, judging) for side in sides])
        if options.live and number == 0:
            play(sides, runs[0], options.speed, sys.stdout if form == TABLE else sys.stderr)
    for note in dict.fromkeys(note for of_seed in runs for each in of_seed for note in each.notes):
        _print_note(note)
    for side, last in zip(sides, runs[-1], strict=True):
        for warning in last.warnings:
            _print_note(f"{side.name}: {warning}")
    judgements = judgements_of(runs) if judging.has_targets else []
    report = comparison_report(sides, runs, uncovered, partial(_origin, options), judgements)
    report.print(form)
    report.write(options.html, options.picture)
    return int(bool(judgements) and not any(each.meets_targets for each in judgements))


def _origin(options: CompareOptions) -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    return Provenance(command=command_line("blis compare", options), seed=options.seed, inputs=input_hashes(options))
