"""Text as token ids and back: a built-in tokenizer, or a real one from a file."""
