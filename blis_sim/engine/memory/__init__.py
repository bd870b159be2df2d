"""Weights and KV cache of a model on the GPUs of one instance, as vLLM 0.33 plans them."""
