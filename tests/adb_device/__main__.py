"""A device by hand: `python -m tests.adb_device`, then `adb connect 127.0.0.1:PORT`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from . import AdbDevice, DeviceUnavailableError, Settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adb_device", description=__doc__)
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
            while True:
                signal.pause()
    except DeviceUnavailableError as e:
        print(f"no device: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


sys.exit(main())
