"""Why a copy over adb failed, by what the client says; and copies that do not go on."""

from __future__ import annotations

import pytest

from harness.targets import adb_copy
from harness.targets.adb_client import Ended
from harness.targets.adb_copy import Growth, _failure
from harness.targets.link import LinkLost

LOCAL, REMOTE = "/here/a ': remote b", "/there/': remote No space\nx"


@pytest.mark.parametrize(
    ("says", "lost", "words"),
    [
        (
            f"adb: error: failed to copy '{LOCAL}' to '{REMOTE}': remote couldn't create file: "
            "Permission denied\n/here: 0 files pushed. 2.1 MB/s",
            False,
            "cannot write it: Permission denied",
        ),
        (
            f"adb: error: failed to copy '{LOCAL}' to '{REMOTE}': remote write failed: "
            "No space left on device",
            False,
            "cannot write it: write failed: No space left on device",
        ),
        (
            f"adb: error: failed to copy '{REMOTE}' to '{LOCAL}': remote open failed: "
            "Permission denied",
            False,
            "cannot write it: open failed: Permission denied",
        ),
        (
            f"adb: error: cannot write '{LOCAL}': No space left on device",
            False,
            f"cannot write '{LOCAL}': No space left on device",
        ),
        (f"adb: error: path too long: {REMOTE}", False, f"path too long: {REMOTE!r}"),
        (
            f"adb: error: failed to copy '{LOCAL}' to '{REMOTE}': couldn't read from device",
            True,
            "cannot write it: the connection broke: failed to copy '' to '': "
            "couldn't read from device",
        ),
        (
            "adb: error: failed to get feature set: device 'X' not found",
            True,
            "cannot write it: the connection broke: failed to get feature set: "
            "device 'X' not found",
        ),
        ("error: closed", True, "cannot write it: the connection broke: closed"),
        ("", True, "cannot write it: the connection broke: adb does not say why"),
    ],
)
def test_the_device_our_disk_and_the_link_are_told_apart(says: str, lost: bool, words: str) -> None:
    found = _failure(Ended(1, says.encode(), b""), LOCAL, REMOTE, "cannot write it")
    assert isinstance(found, LinkLost) == lost
    assert str(found) == words


def test_a_copy_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(adb_copy.time, "monotonic", lambda: clock[0])
    sizes = [None, 5, 5, 9]
    seen: list[int] = []
    growth = Growth(lambda: sizes[0], "the copy", seen.append)
    for seconds, size in ((1, 5), (2, None), (2, 5), (50, 5), (9, 9), (59, 9)):
        clock[0] += seconds
        sizes[0] = size
        growth.tick(0)
    assert seen == [5, 9]
    clock[0] += 2
    with pytest.raises(LinkLost, match="the copy has not gone on for 60 s"):
        growth.tick(0)
