"""The simulation in real time: nothing else in the server knows the wall clock.

Read `driver.py` first, which says when something happens, then `deliveries.py`, which says what. `interface.py` is what
requests are handed to, whichever of the drivers it is.
"""
