"""The command line of `vllm serve`, taken as it is: what we simulate becomes our flags, the rest is read and named.

`flags.csv` lists every flag of vLLM 0.33 with the syntax of its value; read `rewrite.py` first.
"""
