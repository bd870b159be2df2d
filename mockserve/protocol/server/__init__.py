"""The interfaces that generate nothing: models, settings and routes of the server, its tokenizer, rendered prompts."""
