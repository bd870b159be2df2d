"""The OpenAPI document: `schemas.txt` and `operations.csv` hold vLLM's, in a notation of our own."""
