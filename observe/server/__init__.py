"""What a run learns of the server: its model and tokenizer before it, its metrics before, during and after."""
