"""Check of schemas and grammars as the xgrammar 0.2.8 library does it, with its error messages.

The library itself cannot be a dependency: it requires torch, transformers and triton, more than 2 GB.
"""
