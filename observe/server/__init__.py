"""Queries to the server: model and tokenizer before a run, metrics before, during and after."""
