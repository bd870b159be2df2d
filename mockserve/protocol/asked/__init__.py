"""What a request that generates may ask for beside its prompt, whichever interface it comes through."""
