"""The `blis` command line: which commands there are, and how settings become flags."""
