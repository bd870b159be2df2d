"""A server with vLLM's API, timed by the simulated engine.

Read `realtime/driver.py` first: no other module reads the wall clock. A request goes from `http` and `routes` through
`protocol`, which parses, and `serving`, which plans, to the driver. Its tokens go to `reply`. Imports point one way
through the folders; the contract in pyproject.toml has their order.
"""
