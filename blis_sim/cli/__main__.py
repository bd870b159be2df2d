"""`python -m blis_sim.cli` is `blis`."""

from blis_sim.cli.main import main

if __name__ == "__main__":  # a process that this one starts imports it anew
    main()
