"""The simulation in real time: nothing else in the server knows the wall clock.

Read `driver.py` first. `interface.py` says what requests are handed to, whichever of the drivers it is.
"""
