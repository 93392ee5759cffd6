"""The process that logs: is asked on its input, answers on its output, one JSON object a line.

Apart from the one that measures, so that MLflow's threads, memory and messages are not in there,
and a store that hangs can be given up by ending a process. Between requests it sleeps on its input
and uses no processor. It ends with its input; when that ended in the middle of a campaign, because
whoever asked was killed, it logs what there is first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.journal import is_running
from harness.jsonable import from_json, to_json
from harness.tracking_store import HEALTH_S, check_answers, default_uri, scrubbed

if TYPE_CHECKING:
    from harness.tracking import CampaignLog

# beyond what was asked for, until this process ends itself, should nobody else do it
GRACE_S = 5.0
# a server has so long to say that it is well when no campaign waits
PATIENT_S = 15.0
# for what is left to log when whoever asked was killed
LAST_S = 20.0
# Of a process that is killed the pipe may be closed before the lock on its journal: on a busy
# machine one campaign in ten still seemed to run.
DYING_S, LOOK_S = 3.0, 0.05


@dataclass(frozen=True)
class Request:
    """Log one campaign; `uri` None: to the store in `runs_dir`.

    What is not logged in `seconds` is left for the next request. `request_s`: so long may a server
    take for one thing. `running`, `standing`: see `tracking.CampaignLog.sync`.
    """

    directory: str
    uri: str | None
    runs_dir: str
    experiment: str
    seconds: float
    request_s: int
    running: bool = False
    standing: str | None = None
    id: int = 0


@dataclass(frozen=True)
class Answer:
    """To the request `id`. `done` False: a cell is logged, and there is more to come.

    `in_time` False: there was no time for all of it. `run_id`: of the campaign's run.
    """

    id: int
    done: bool = True
    in_time: bool = True
    run_id: str | None = None
    error: str | None = None


def main() -> int:
    """Answer until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever MLflow, or what it uses, has to say is no answer
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for whoever asks
        signal.signal(number, signal.SIG_IGN)

    def say(answer: Answer) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever asked may be gone meanwhile
            os.write(answers, (json.dumps(to_json(answer)) + "\n").encode())

    worker = _Worker()
    for line in sys.stdin:
        request = from_json(Request, json.loads(line))
        say(worker.do(request, lambda: say(Answer(request.id, done=False))))  # noqa: B023
    worker.end()
    return 0


class _Worker:
    """Remembers the campaign that it logs."""

    def __init__(self) -> None:
        self._log: CampaignLog | None = None
        self._last: Request | None = None

    def do(self, request: Request, on_cell: Callable[[], None]) -> Answer:
        """As asked, and what came of it."""
        until = time.monotonic() + request.seconds
        last, self._last = self._last, request
        uri = request.uri or default_uri(Path(request.runs_dir))
        with _no_longer_than(request.seconds + GRACE_S):
            try:
                health_s = min(request.request_s, HEALTH_S if request.running else PATIENT_S)
                check_answers(uri, health_s)  # before it takes seconds to import MLflow
                from harness.tracking import CampaignLog, OutOfTimeError

                os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(request.request_s)
                if self._log is None or last is None or last.directory != request.directory:
                    self._log = CampaignLog(
                        Path(request.directory),
                        uri=request.uri,
                        runs_dir=Path(request.runs_dir),
                        experiment=request.experiment,
                    )

                def in_time() -> None:
                    if time.monotonic() > until:
                        raise OutOfTimeError("there was no time to log all of it")

                try:
                    run_id = self._log.sync(
                        running=request.running,
                        standing=request.standing,
                        in_time=in_time,
                        on_cell=on_cell,
                        answer_s=health_s,
                    )
                except OutOfTimeError:
                    return Answer(request.id, in_time=False)
                return Answer(request.id, run_id=run_id)
            except HarnessError as e:
                return Answer(request.id, error=scrubbed(str(e), uri))

    def end(self) -> None:
        """Whoever asked is gone: was the campaign logged to its end?"""
        last = self._last
        if last is None or not last.running:
            return
        until = time.monotonic() + DYING_S
        while is_running(Path(last.directory)):
            if time.monotonic() > until:
                return
            time.sleep(LOOK_S)
        self.do(dataclasses.replace(last, running=False, seconds=LAST_S), lambda: None)


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Else this process ends, by the signal itself: nothing that hangs stands in its way."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.exit(main())
