"""Asks the process that logs, and waits no longer than it was given. Starts and ends that process.

The address of the store, which may hold a password, goes through its input: arguments and
environment can be read by others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from harness.jsonable import from_json, to_json
from harness.tracking_store import TrackingError, default_uri, scrubbed
from harness.tracking_text import without_credentials
from harness.tracking_worker import Answer, Request

LOOK_S = 0.1
# of one that is told to end
END_S = 5.0


class LoggingProcess:
    """One process, started when it is first asked, and again after it had to be ended."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._buffer = b""
        self._asked = 0

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(
        self,
        request: Request,
        *,
        at_most_s: float,
        silent_s: float | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Answer | None:
        """What came of `request`; None when `is_over` says that nobody waits any more.

        `silent_s`: also give up when so long no cell is logged. Raises TrackingError: it could not
        be logged, or not in time; then the process is ended.
        """
        process = self._process or self._start()
        self._asked += 1
        line = json.dumps(to_json(dataclasses.replace(request, id=self._asked))) + "\n"
        assert process.stdin is not None  # noqa: S101
        try:
            os.write(process.stdin.fileno(), line.encode())
        except OSError:
            raise self._died(request) from None
        began = heard = time.monotonic()
        while True:
            now = time.monotonic()
            if now > began + at_most_s or (silent_s is not None and now > heard + silent_s):
                self.kill()
                raise TrackingError(
                    f"MLflow store {_named(request)} did not answer within {now - heard:.0f} s"
                )
            if is_over():
                return None
            answer = self._next_answer(request)
            if answer is None or answer.id != self._asked:  # of one that nobody waited for
                continue
            if not answer.done:
                heard = time.monotonic()
                continue
            if answer.error is not None:
                raise TrackingError(answer.error)
            return answer

    def close(self) -> None:
        """Let it end by itself, or else make it."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None  # noqa: S101
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """End it at once; what it was about to log is found incomplete, and completed, later."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, self._said):
            if pipe is not None:
                pipe.close()
        self._buffer = b""

    def __enter__(self) -> LoggingProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "harness.tracking_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for us; how it ends is ours to say
        )
        return self._process

    def _next_answer(self, request: Request) -> Answer | None:
        """None when there is none yet."""
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return from_json(Answer, json.loads(line))
        assert self._process is not None and self._process.stdout is not None  # noqa: S101
        if select.select([self._process.stdout], [], [], LOOK_S)[0]:
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise self._died(request)
            self._buffer += more
        return None

    def _died(self, request: Request) -> TrackingError:
        """The last that it said is why, as a rule: of an exception."""
        said = ""
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self.kill()
        why = scrubbed(said, request.uri or "") or "it was killed"
        return TrackingError(f"the process that logs to MLflow ended: {why}")


def _named(request: Request) -> str:
    return without_credentials(request.uri or default_uri(Path(request.runs_dir)))
