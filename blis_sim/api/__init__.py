"""The Python interface: functions that act as the commands do, return typed results and print nothing.

`commands.py` has the functions and makes options of their keyword arguments. `settings.py` is generated and lists these
arguments, one for each setting of the command. `import blis_sim` offers the stable names.
"""

from blis_sim.cli.search_path import load_own_packages

load_own_packages()
