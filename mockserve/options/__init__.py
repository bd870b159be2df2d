"""The flags of `blis serve` in sections, what they imply, and the environment that a server reads.

`serve.py` has the options of the command. Each section is a class in this folder, which validates its values.
"""
