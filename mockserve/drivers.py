"""What requests are handed to: one engine here, several, one of several, or those of another process."""

from typing import TypeAlias

from mockserve.cluster.instance_driver import InstanceDriver
from mockserve.processes.remote_driver import RemoteDriver
from mockserve.ranks import RankedDriver
from mockserve.realtime import RealtimeDriver

Driver: TypeAlias = RealtimeDriver | RankedDriver | RemoteDriver | InstanceDriver
