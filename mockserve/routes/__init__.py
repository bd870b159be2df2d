"""One module per group of routes. Handlers are thin: parse, plan, answer."""
