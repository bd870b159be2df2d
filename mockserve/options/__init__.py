"""The flags of `blis serve` in sections, what they imply, and the environment that a server reads.

`serve.py` has the options of the command; each of its sections is a class of its own here, which checks itself.
"""
