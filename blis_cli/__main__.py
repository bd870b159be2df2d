"""`python -m blis_cli` is `blis`."""

from blis_cli.main import main

main()
