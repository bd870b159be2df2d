"""Translation of `vllm serve` command lines: simulated flags become ours, all others are parsed and reported.

`flags.csv` lists every flag of vLLM 0.33 with the syntax of its value; read `rewrite.py` first.
"""
