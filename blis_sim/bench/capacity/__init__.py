"""`blis plan`: the cheapest deployment that keeps latency targets under a load.

Imports point one way: `command` > `report`, `serving` > `answer` > `search` > `candidates` > `simulations`, `prices`.
"""
