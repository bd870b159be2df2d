"""`python -m blis_cli` is `blis`."""

from blis_cli.main import main

if __name__ == "__main__":  # a process that this one starts imports it anew
    main()
