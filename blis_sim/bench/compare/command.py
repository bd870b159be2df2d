"""`blis compare`: the same requests through two or more configurations, side by side."""

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from blis_sim.bench.compare.options import CompareOptions

if TYPE_CHECKING:
    from blis_sim.bench.compare.measuring import Configuration


def rewritten(arguments: list[str]) -> list[str]:
    """A command line in which the flags after each `--` are one argument."""
    parts: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            parts.append([])
        else:
            parts[-1].append(argument)
    own, *sides = parts
    return [*own, "--", *(shlex.join(side) for side in sides)] if sides else own


def run(options: CompareOptions) -> int:
    """Simulate all configurations with the same requests, print the table and write requested files."""
    from blis_sim.bench.compare.measuring import configurations_of, simulate_configuration, workload_of
    from blis_sim.bench.compare.report import as_json, table_text

    sides = configurations_of(options)
    for side in sides:
        for note in side.notes:
            _print_note(f"{side.name}: {note}")
    runs = []
    for number in range(options.repeat):
        requests = workload_of(options, number)
        runs.append([simulate_configuration(side, requests) for side in sides])
        if options.live and number == 0:
            from blis_sim.bench.compare.report import play

            play(sides, runs[0], options.speed, sys.stderr if options.json else sys.stdout)
    sys.stdout.write(as_json(sides, runs) if options.json else table_text(sides, runs))
    _write(options, sides, runs)
    return 0


def _write(options: CompareOptions, sides: "list[Configuration]", runs: list[list]) -> None:  # type: ignore[type-arg]
    if options.picture is not None:
        from blis_sim.bench.compare.report import draw

        draw(sides, runs[0], options.picture)
    if options.html is not None:
        from blis_sim.bench.compare.report import write_comparison
        from blis_sim.options.provenance import Provenance, command_line, input_hashes

        command = command_line("blis compare", options)
        origin = Provenance(command=command, seed=options.seed, inputs=input_hashes(options))
        write_comparison(sides, runs, origin, options.html)


def _print_note(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"blis compare: {line}\n")
