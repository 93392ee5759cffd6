"""Whether a place on a phone is a real file system. Pure, but for asking through a link.

App-external storage is shown through FUSE (or sdcardfs). A direct read there reports success and
may leave the buffer as it was, so a model there would be "read" in no time.
"""

from __future__ import annotations

from harness.errors import DeviceError
from harness.targets.link import Call

USE_INSTEAD = "use a directory below /data/local/tmp (target.dir=)"


# Numbers of statfs(2).
_NOT_REAL = {0x65735546: "FUSE", 0x5DCA2DF5: "sdcardfs"}

_NAMES = (
    "/sdcard",
    "/mnt/sdcard",
    "/mnt/user",
    "/mnt/runtime",
    "/mnt/pass_through",
    "/storage",
)

# The places of a script's answer are lines; the last may hold newlines of its own.
_ASK = """
[ -d "$1" ] && echo directory || echo other
d=${1%/*}; d=${d:-/}
[ -d "$d" ] && echo there || echo nowhere
t=$(stat -f -c %t "$d" 2>/dev/null); echo "${t:-unknown}"
readlink -f "$d" 2>/dev/null || echo "$d"
"""


def check_destination(call: Call, destination: str, timeout_s: float) -> None:
    """Raises DeviceError when a file cannot or must not be written to exactly this path."""
    if not destination.startswith("/"):
        raise DeviceError(f"{destination!r} is no path of a file there: it must begin with /")
    answer = call(["sh", "-c", _ASK, "sh", destination], timeout_s=timeout_s)
    lines = answer.stdout.decode("utf-8", "surrogateescape").split("\n", 3)
    if len(lines) != 4:
        raise DeviceError(f"cannot ask the device about {destination!r}: found {answer.stdout!r}")
    kind, parent, magic, real = lines
    if kind == "directory":
        raise DeviceError(f"cannot write {destination!r}: it is a directory there")
    if parent != "there":
        raise DeviceError(f"cannot write {destination!r}: its directory does not exist")
    reason = why_not_real(real.removesuffix("\n"), magic)
    if reason is not None:
        raise DeviceError(f"cannot use {destination!r}: {reason}; {USE_INSTEAD}")


def why_not_real(directory: str, magic: str) -> str | None:
    """Why a directory is no place for a model; None when it is one.

    `magic`: the type of its file system as statfs(2) numbers it, in hexadecimal; where it is not
    known, the name decides.
    """
    try:
        found = _NOT_REAL.get(int(magic, 16))
    except ValueError:
        if not any(directory == name or directory.startswith(name + "/") for name in _NAMES):
            return None
        found = "emulated storage by its name"
    if found is None:
        return None
    return f"it is {found}, where direct reads may return nothing and report success"
