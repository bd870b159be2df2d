"""The OpenAPI document: `schemas.txt` and `operations.csv` are what vLLM's says, in a notation of our own."""
