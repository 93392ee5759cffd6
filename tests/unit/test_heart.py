"""Signs of life over a channel that a test holds in its hands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from harness.targets.heart import Heart
from harness.targets.link import LinkLost


class HandChannel:
    """Answers each beat with what the test lays out; nothing laid out: no answer."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.beats = 0
        self.ended = False
        self.closed = False
        self._came: list[bytes] = []

    def send(self, line: bytes) -> None:
        self.beats += 1
        if self.answer is not None:
            self._came.append(self.answer)

    def lines(self) -> list[bytes]:
        came, self._came = self._came, []
        if not came and self.ended:
            raise LinkLost("the program has ended")
        return came

    def close(self) -> None:
        self.closed = True


def answer(**more: object) -> bytes:
    return json.dumps({"running": True, "boot_id": "b", "tails": ["a", "\udcff"], **more}).encode()


def until(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_answer_is_kept_as_it_came() -> None:
    channel = HandChannel(answer())
    heart = Heart(channel, silent_s=5.0)
    pulse = heart.first_pulse()
    assert (pulse.running, pulse.boot_id, pulse.tails) == (True, "b", (b"a", b"\xff"))
    assert pulse.beat_error is None
    heart.stop()
    assert channel.closed
    assert heart.lost is None


def test_a_beat_that_could_not_be_noted_is_told() -> None:
    heart = Heart(HandChannel(answer(beat_error="read-only file system")), silent_s=5.0)
    assert heart.first_pulse().beat_error == "read-only file system"
    heart.stop()


def test_silence_is_a_loss() -> None:
    channel = HandChannel(answer())
    heart = Heart(channel, silent_s=0.3)
    heart.first_pulse()
    channel.answer = None
    until(lambda: heart.lost is not None)
    assert heart.lost is not None
    assert "has not answered for" in heart.lost
    heart.stop()


def test_the_first_answer_may_take_longer_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = HandChannel(None)
    heart = Heart(channel, silent_s=0.1)
    time.sleep(0.5)
    channel.answer = answer()
    assert heart.first_pulse().boot_id == "b"
    heart.stop()
    monkeypatch.setattr("harness.targets.heart.FIRST_S", 0.3)
    heart = Heart(HandChannel(None), silent_s=0.1)
    # the second where its thread did not come to run for a second
    with pytest.raises(LinkLost, match=r"has not answered for|does not answer"):
        heart.first_pulse()
    heart.stop()


def test_the_end_of_the_program_is_a_loss() -> None:
    channel = HandChannel(answer())
    heart = Heart(channel, silent_s=5.0)
    heart.first_pulse()
    channel.ended = True
    until(lambda: heart.lost is not None)
    assert heart.lost == "the program has ended"
    heart.stop()


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b'{"running": 1, "boot_id": 2}', b"\xff"])
def test_an_answer_that_is_none_is_a_loss(line: bytes) -> None:
    heart = Heart(HandChannel(line), silent_s=5.0)
    with pytest.raises(LinkLost, match="not understood"):
        heart.first_pulse()
    heart.stop()
