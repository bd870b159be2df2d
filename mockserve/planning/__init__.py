"""Planning of replies to parsed requests: one module for each kind of request, before the engine is involved."""
