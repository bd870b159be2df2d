"""What requests are handed to: one engine here, several, or those of another process."""

from typing import TypeAlias

from mockserve.processes.remote_driver import RemoteDriver
from mockserve.ranks import RankedDriver
from mockserve.realtime import RealtimeDriver

Driver: TypeAlias = RealtimeDriver | RankedDriver | RemoteDriver
