"""What a server can be told: the flags of `blis serve` with what they imply, and the environment it reads.

Each class of flags builds upon the one before; `serve.py` has the last, with all of them.
"""
