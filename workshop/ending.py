"""The end of a command of the workshop: where what it needs is not there, one line and exit code 2."""

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from blis_sim.engine.errors import EngineError
from blis_sim.options.option import OptionError
from traces import TraceError

REFUSED = 2


def refuse(line: str) -> NoReturn:
    """End with a line on standard error."""
    sys.stderr.write(f"{line}\n")
    raise SystemExit(REFUSED)


def positional(*names: str) -> list[str]:
    """The arguments of a command without flags. More may follow where the last name ends with dots."""
    found = sys.argv[1:]
    if len(found) < len(names) or (len(found) > len(names) and not names[-1].endswith("...")):
        refuse(f"usage: {Path(sys.argv[0]).stem} {' '.join(names)}")
    return found


def check_reachable(*urls: str) -> None:
    """Refuse where a server does not answer."""
    for url in urls:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=30).close()
        except urllib.error.HTTPError:
            continue
        except (OSError, http.client.HTTPException, ValueError) as error:
            refuse(f"cannot reach {url}: {error}")


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run a command. A library, server or file that it needs and that is not there is named in one line."""
    try:
        code = main()
    except ModuleNotFoundError as error:
        refuse(f"this command needs the Python package {error.name}, which is not installed")
    except FileNotFoundError as error:
        refuse(f"{error.filename}: no such file or folder")
    except (urllib.error.URLError, ConnectionError, http.client.HTTPException) as error:
        refuse(f"cannot reach the server: {error}")
    except (EngineError, OptionError, TraceError) as error:
        refuse(str(error))
    sys.exit(code)
