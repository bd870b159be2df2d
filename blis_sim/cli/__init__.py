"""The `blis` command line: the table of commands, their help, and the commands without a package of their own."""
