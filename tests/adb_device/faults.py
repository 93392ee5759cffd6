"""How the device is to behave, as plain data that a test changes while it runs."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from .wire import MAX_PAYLOAD, VERSION_WITHOUT

Ending = Literal["reset", "silent", "close_stream", "short"]


@dataclass(frozen=True)
class SyncCut:
    """Once a transfer has carried so many bytes of a file, it ends like this:

    `reset`: RST on the connection; `silent`: the connection stays, and nothing comes any more;
    `close_stream`: only the stream of this transfer is closed; `short`: (recv) the file's end is
    said to be here.
    """

    direction: Literal["send", "recv"]
    after_bytes: int
    how: Ending

    def __post_init__(self) -> None:
        if self.direction not in ("send", "recv") or self.how not in get_args(Ending):
            raise ValueError(f"no such cut: {self}")
        if self.how == "short" and self.direction == "send":
            raise ValueError("only what the device sends can be said to end early")


@dataclass(frozen=True)
class Settings:
    """What holds until it is changed; one-shot faults are taken back by what carried them out."""

    model: str = "Pixel_T"
    features: tuple[str, ...] = (
        "shell_v2",
        "stat_v2",
        "ls_v2",
        "fixed_push_mkdir",
        "fixed_push_symlink_timestamp",
    )
    version: int = VERSION_WITHOUT
    max_payload: int = MAX_PAYLOAD
    # `open`: anybody may connect; `keys`: those who sign with one of `keys` (texts of adbkey.pub)
    auth: Literal["open", "keys"] = "open"
    keys: tuple[str, ...] = ()
    # connections are taken and never answered
    offline: bool = False
    # before each message that the device sends
    delay_s: float = 0.0
    # one-shot: writing the n-th piece of a pushed file, counted from 1, fails for want of space
    sync_write_fails_at: int | None = None
    # of files with this in their paths; the others' pieces are not counted
    sync_write_fails_in: str = ""
    sync_cut: SyncCut | None = None
    # what `cmd power set-fixed-performance-mode-enabled` does is in the device's own files

    def changed(self, changes: dict[str, Any]) -> Settings:
        """From JSON's types; raises TypeError or ValueError for what does not fit."""
        given = dict(changes)
        if isinstance(cut := given.get("sync_cut"), dict):
            given["sync_cut"] = SyncCut(**cut)
        for name in ("features", "keys"):
            if name in given:
                given[name] = tuple(given[name])
        return replace(self, **given)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Behaviour:
    """The settings as they are now, for many threads."""

    settings: Settings
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def change(self, changes: dict[str, Any]) -> None:
        with self._lock:
            self.settings = self.settings.changed(changes)

    def write_fails_now(self, path: str) -> bool:
        """Called for each piece of a pushed file; true for the one that is to fail."""
        with self._lock:
            left = self.settings.sync_write_fails_at
            if left is None or self.settings.sync_write_fails_in not in path:
                return False
            following = left - 1 if left > 1 else None
            self.settings = replace(self.settings, sync_write_fails_at=following)
            return following is None

    def cut_after(self, direction: str, so_far: int) -> Ending | None:
        """How this transfer ends now, if it does; it does so once."""
        with self._lock:
            cut = self.settings.sync_cut
            if cut is None or cut.direction != direction or so_far < cut.after_bytes:
                return None
            self.settings = replace(self.settings, sync_cut=None)
            return cut.how
