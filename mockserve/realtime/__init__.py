"""Real-time execution of the simulation: the only part of the server that reads the wall clock.

Read `driver.py` first, which schedules wake-ups and delivers tokens.
"""
