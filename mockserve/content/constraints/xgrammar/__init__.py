"""What the xgrammar 0.2.8 library accepts, and its words for what it does not.

The library itself cannot be a dependency: it requires torch, transformers and triton, more than 2 GB.
"""
