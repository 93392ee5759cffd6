"""A made-up Android device for tests, to which the real adb client connects over TCP.

What is real: the adb transport and its services, a shell (mksh, toybox) whose processes live in a
mount and process namespace of their own, and a file system that takes direct I/O. What is made up:
sensors, clocks, battery, properties, and every fault. docs/adb-device.md says more.
"""

from .control import AdbDevice
from .faults import Settings, SyncCut
from .fuse import has_fuse
from .layout import DeviceUnavailableError, why_unavailable

__all__ = [
    "AdbDevice",
    "DeviceUnavailableError",
    "Settings",
    "SyncCut",
    "has_fuse",
    "why_unavailable",
]
