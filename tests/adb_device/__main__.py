"""A device by hand: `python -m tests.adb_device`, then `adb connect 127.0.0.1:PORT`.

Lines on standard input are done to it: reboot [S], freeze, thaw, drop, silent, offline, back,
authorize, unauthorize, temperature ZONE CELSIUS, cap POLICY KHZ.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import AdbDevice, DeviceUnavailableError, Settings


def orders_for(device: AdbDevice) -> dict[str, Callable[..., None]]:
    return {
        "reboot": lambda down_s="1": device.reboot(float(down_s)),
        "freeze": device.freeze,
        "thaw": device.thaw,
        "drop": device.drop_connections,
        "silent": partial(device.drop_connections, silent=True),
        "offline": device.go_offline,
        "back": device.come_back,
        "authorize": device.authorize,
        "unauthorize": device.unauthorize,
        "temperature": lambda zone, celsius: device.set_temperature(zone, float(celsius)),
        "cap": lambda policy, khz: device.set_cap(policy, int(khz)),
    }


def obey(device: AdbDevice) -> None:
    """Until standard input ends."""
    orders = orders_for(device)
    for line in sys.stdin:
        name, *words = line.split() or [""]
        if name not in orders:
            print(f"no such order: {name}; there are {', '.join(orders)}", file=sys.stderr)
            continue
        try:
            orders[name](*words)
        except (KeyError, TypeError, ValueError) as e:
            print(f"{line.strip()}: {e}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.adb_device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--data-bytes", type=int, help="/data is a file system of that size")
    parser.add_argument("--unauthorized", action="store_true", help="no host's key is known")
    parser.add_argument("--no-shell-v2", action="store_true", help="as before Android 7")
    parser.add_argument("--down-s", type=float, default=1.0, help="how long a restart takes")
    given = parser.parse_args()
    settings = Settings(auth="keys" if given.unauthorized else "open")
    if given.no_shell_v2:
        features = tuple(f for f in settings.features if f != "shell_v2")
        settings = settings.changed({"features": features})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    device = AdbDevice(
        settings,
        directory=given.directory,
        data_bytes=given.data_bytes,
        down_s=given.down_s,
        port=given.port,
    )
    try:
        with device:
            print(device.port, flush=True)
            print(f"files: {device.layout.base}", file=sys.stderr, flush=True)
            obey(device)
            while True:
                signal.pause()
    except DeviceUnavailableError as e:
        print(f"no device: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


sys.exit(main())
