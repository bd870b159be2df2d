"""From a parsed request to the reply to write: one module for each kind of request, all before the engine gets it."""
