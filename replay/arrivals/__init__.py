"""From the rows of a trace or the requests of a workload to requests with arrival times on the engine's clock.

Read `arrival.py` first; `recorded.py` makes them from a trace, `synthetic.py` from a workload. Both use
`conversation_blocks.py` for prompts that go on where an earlier one and its reply ended.
"""
