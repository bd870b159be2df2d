"""The simulation in real time: no other part of the server reads the wall clock.

Read `driver.py` first, which decides when something happens, then `deliveries.py`, which decides what happens.
"""
