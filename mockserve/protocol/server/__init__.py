"""Interfaces that generate no text: models, settings and routes of the server, its tokenizer, rendered prompts."""
