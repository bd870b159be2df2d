"""`blis plan`: the cheapest deployment that keeps latency targets under a load.

Imports point one way: `command` > `answer`, `stress`, `report` > `search` > `candidates`, `simulations` > `targets`,
`prices`.
"""
