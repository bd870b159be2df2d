"""The process of `server`: a server with the settings that standard input has by name, as JSON."""

import json
import sys

from blis_sim.options import BlisError, options_from


def main() -> int:
    """Serve with the settings on standard input. Exit codes: 0 done, 2 bad input."""
    from mockserve.command import run
    from mockserve.options.serve import ServeOptions

    given = json.load(sys.stdin)
    try:
        # Lists of settings are tuples, which JSON does not have.
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return run(options_from(ServeOptions, **values))
    except BlisError as error:
        sys.stderr.write(f"blis serve: error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
