"""The command line: verbs, and without a verb one campaign. Imports the heavy rooms only when used.

Arguments that do not start with a verb are Hydra's: overrides (`+experiment=NAME key=value`) and
those of Hydra's own flags that make sense here. Every error a user can act on is one line on
stderr, `harness: error: ...`; exit codes are those of the contract, as `--help` lists them.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from harness.errors import HarnessError, Interrupted, UsageError

FLAGS = "-m, --info, --json, --help, --version and --cfg job"

Verb = Callable[[Sequence[str]], int]


def _build(argv: Sequence[str]) -> int:
    from harness.build.cli import main as run

    return run(list(argv))


def _model(argv: Sequence[str]) -> int:
    from harness.models.cli import main as run

    return run(list(argv))


def _report(argv: Sequence[str]) -> int:
    from harness.verbs.report import main as run

    return run(list(argv))


def _import(argv: Sequence[str]) -> int:
    from harness.verbs.importing import main as run

    return run(list(argv))


def _power(argv: Sequence[str]) -> int:
    from harness.power.cli import main as run

    return run(list(argv))


def _verify(argv: Sequence[str]) -> int:
    from harness.verify.cli import main as run

    return run(list(argv))


def _doctor(argv: Sequence[str]) -> int:
    from harness.campaign.doctor import main as run

    return run(list(argv))


def _ui(argv: Sequence[str]) -> int:
    from harness.verbs.ui import main as run

    return run(list(argv))


def _sweep(argv: Sequence[str]) -> int:
    from harness.sweep.cli import main as run

    return run(list(argv))


def _track(argv: Sequence[str]) -> int:
    from harness.verbs.track import main as run

    return run(list(argv))


def _gate(argv: Sequence[str]) -> int:
    from harness.verbs.gate import main as gate

    def run(overrides: Sequence[str]) -> int:
        from harness.campaign import run as run_campaign

        return run_campaign(overrides)

    return gate(list(argv), run)


VERBS: dict[str, tuple[Verb, str]] = {
    "doctor": (_doctor, "what this device can and cannot tell, and what to do about it"),
    "build": (_build, "build the engine and the launcher, or say what is built"),
    "report": (_report, "judge a campaign again from disk, show its verdict"),
    "ui": (_ui, "look at campaigns in MLflow's pages, on this machine"),
    "sweep": (_sweep, "show the campaigns of a sweep (-m, or the nightly), one row each"),
    "track": (_track, "log campaigns from their directories to MLflow"),
    "gate": (_gate, "whether a campaign shows the engine to be worse than it was"),
    "import": (_import, "make a campaign of another program's measurements"),
    "power": (_power, "how many pairs, and how long, an effect takes on this device"),
    "model": (_model, "list, make and inspect models"),
    "verify": (_verify, "recompute a MoE layer in NumPy and compare with the engine"),
}


@dataclass
class Arguments:
    """What stands on the command line of a campaign."""

    overrides: list[str]
    show: str | None = None  # --cfg
    info: str | None = None  # --info; "": of all experiments
    json: bool = False
    multirun: bool = False  # -m
    help: bool = False
    version: bool = False


def main(argv: Sequence[str]) -> int:
    """Run one command and return the process's exit code."""
    sys.stdout = SteadyOutput(sys.stdout)
    try:
        signal.signal(signal.SIGTERM, _as_interrupt)
        code = _dispatch(list(argv))
        sys.stdout.flush()
    except Interrupted as e:
        print(f"harness: {e}", file=sys.stderr)
        return e.exit_code
    except HarnessError as e:
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted before anything was measured", file=sys.stderr)
        return 130
    return code


class SteadyOutput(io.TextIOBase):
    """Standard output whose end (`| head`, `>&-`, a full disk) does not end a measurement.

    The first failing write is told in one line on stderr, unless a reader has gone away, which is
    its right; what follows is dropped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` None: it was closed before we started."""
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a degree sign in a log in ASCII, say
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream behind."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """False once the stream is gone."""
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        """Of the stream behind; OSError (io.UnsupportedOperation) when it is gone."""
        return super().fileno() if self._stream is None else self._stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Write, or drop."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except OSError as e:
                self._gone(e)
        return len(text)

    def flush(self) -> None:
        """Flush, or learn that the stream is gone."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except OSError as e:
                self._gone(e)

    def _gone(self, error: OSError) -> None:
        stream, self._stream = self._stream, None
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):  # the same terminal, maybe
                print(
                    f"harness: standard output is gone ({error.strerror}); going on without it",
                    file=sys.stderr,
                )
        if stream is not None:  # else Python tries once more at its exit, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a campaign the way Ctrl-C does: what was measured is kept."""
    raise KeyboardInterrupt


def _dispatch(argv: list[str]) -> int:
    if argv and argv[0] in VERBS:
        return VERBS[argv[0]][0](argv[1:])
    arguments = parse(argv)
    if arguments.version:
        from harness import __version__

        print(f"moe-harness {__version__}")
        return 0
    if arguments.help:
        print(usage())
        return 0
    if arguments.json and arguments.info is None:
        raise UsageError("--json: goes with --info; what a campaign found: report RUN --json")
    if arguments.multirun and (arguments.show or arguments.info is not None):
        raise UsageError("-m: runs a sweep, of which plan_only=true prints all plans; leave it out")
    if arguments.info is not None:
        from harness.info import inform

        return inform(arguments.info, arguments.overrides, as_json=arguments.json)
    if arguments.show:
        from harness.configure import check, compose, to_yaml
        from harness.nightly_config import NightlyConfig, check_night
        from harness.typed import from_mapping

        data = compose(arguments.overrides)
        if data["cells"]:  # without an experiment: the defaults that every experiment starts from
            check(data)
        elif data["nightly"]["entries"]:
            check_night(from_mapping(NightlyConfig, data["nightly"], "nightly"))
        print(to_yaml(data), end="")
        return 0
    from harness.sweep.runner import run

    return run(arguments.overrides, multirun=arguments.multirun)


def parse(argv: Sequence[str]) -> Arguments:
    """Overrides and flags apart. Raises UsageError for a flag or verb that does not exist."""
    found = Arguments(overrides=[])
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            found.help = True
        elif word == "--version":
            found.version = True
        elif flag in ("-c", "--cfg"):
            what = value if equals else (rest.pop(0) if rest else "")
            if what != "job":
                raise UsageError(f"--cfg {what}".rstrip() + ": only `--cfg job` is there to print")
            found.show = what
        elif flag == "--info":
            # a name may follow; anything else that may is an override or a flag
            named = bool(rest) and "=" not in rest[0] and not rest[0].startswith(("-", "+", "~"))
            found.info = value if equals else rest.pop(0) if named else ""
        elif word == "--json":
            found.json = True
        elif flag in ("-m", "--multirun"):
            if equals:
                raise UsageError(f"{word}: {flag} takes no value")
            found.multirun = True
        elif word.startswith("-"):
            raise UsageError(f"{word}: unknown flag; there are {FLAGS}")
        elif "=" not in word and not word.startswith(("~", "+")):
            from harness.typed import nearest

            raise UsageError(
                f"{word}: neither key=value (+experiment=NAME runs a campaign) nor a verb"
                f"{nearest(word, VERBS, 'verbs')}"
            )
        else:
            found.overrides.append(word)
    return found


def usage() -> str:
    """The text of `--help`."""
    from harness.configure import conf_dir, described, groups

    conf = conf_dir()
    others = ", ".join(g for g in groups(conf) if g not in ("experiment", "local"))
    lines = [
        "usage: python -m harness +experiment=NAME [key=value ...]   run a campaign",
        "       python -m harness -m +experiment=NAME key=a,b ...    one campaign for each value",
        "       python -m harness resume=ID                          finish an interrupted one",
        "       python -m harness VERB --help",
        "",
        "Runs an experiment's cells one after the other, watches the device, and says what can be",
        "concluded: which change made the engine faster, and whether this run can tell at all.",
        "",
        "experiments:",
        *_columns(described(conf, "experiment")),
        "",
        "verbs:",
        *_columns([(name, text) for name, (_, text) in VERBS.items()]),
        "",
        "often changed (all keys, with comments: conf/):",
        *_columns(
            [
                ("plan_only=true", "print the plan, run nothing"),
                ("schedule.spacing_s=30", "seconds between cells"),
                ("cell.n_predict=128", "tokens to generate in every cell"),
                ("cells.NAME.engine.io_threads=4", "change one cell"),
                ("cells.NAME=FILE", "add or replace a cell, from conf/cell/FILE.yaml"),
                (
                    "memory.limit_mb=N",
                    "limit anonymous memory, in MiB (memory=half: by model size)",
                ),
                ("model=path model.path=FILE", "another GGUF"),
                ("engine.binary=FILE", "another build of the engine"),
                ("runs_dir=DIR", "where campaigns are written"),
            ]
        ),
        f"groups (GROUP=OPTION, see conf/): {others}",
        "",
        "flags:",
        *_columns(
            [
                ("-m", "a sweep: key=a,b, key=range(1,9,2), GROUP=glob(*); several vary together"),
                ("--info [NAME]", "list the experiments, or say all about one; --json"),
                ("--cfg job", "print the composed configuration as YAML, run nothing"),
                ("--version", "print the version"),
                ("--help", "this text"),
            ]
        ),
        "",
        "exit codes: 0 ran to its end, whatever the verdict; 1 a cell or the device failed;",
        "2 wrong usage or configuration, nothing was started; 130 interrupted, can be resumed",
    ]
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name.ljust(width)}  {text}".rstrip() for name, text in rows]
