"""The tree of errors a user can cause. A bug is never one of these.

BlisError               shown as one line, exit code 2
|-- OptionError         a flag or a configuration value
|-- blis_sim.engine.errors.EngineError
`-- traces.errors.TraceError
"""


class BlisError(Exception):
    """One clear line for the user: what was given, what is wrong with it, what is allowed."""


class OptionError(BlisError):
    """A flag or a configuration value is out of bounds or unknown."""
