"""Tests of a module that mostly wait, for leases and dead lines: all run at once, in threads.

Each remains a test of its own, with its own outcome and whatever it may break to itself; the first
one that pytest asks for waits for the slowest. Only those that pytest was asked for are run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

Body = Callable[..., None]
Outcomes = dict[str, "Future[None]"]
# how a body is run: with what it needs, made in this directory and ended with this stack
Run = Callable[[Body, Path, contextlib.ExitStack], None]


class Together:
    """`@together` on a test, and `@together.each(...)` with a last argument that takes each of
    these values; the module needs a fixture `outcomes` with `running`."""

    def __init__(self) -> None:
        self._bodies: dict[str, Body] = {}

    def __call__(self, body: Body) -> Body:
        self._bodies[body.__name__] = body

        def test(outcomes: Outcomes) -> None:
            outcomes[body.__name__].result()

        return _named(test, body)

    def each(self, *values: object) -> Callable[[Body], Body]:
        def decorate(body: Body) -> Body:
            for value in values:
                self._bodies[f"{body.__name__}[{value}]"] = _with_last(body, value)

            def test(outcomes: Outcomes, value: object) -> None:
                outcomes[f"{body.__name__}[{value}]"].result()

            ids = [str(value) for value in values]
            parametrize: Callable[[Body], Body] = pytest.mark.parametrize("value", values, ids=ids)
            return parametrize(_named(test, body))

        return decorate

    @contextlib.contextmanager
    def running(self, request: pytest.FixtureRequest, run: Run) -> Iterator[Outcomes]:
        """Start those that pytest was asked for."""
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        asked = {i.name for i in request.session.items if i.path == request.path}
        bodies = {name: body for name, body in self._bodies.items() if name in asked}
        with ThreadPoolExecutor(max(1, len(bodies))) as pool, contextlib.ExitStack() as stacks:
            outcomes = {}
            for name, body in bodies.items():
                stack = contextlib.ExitStack()
                stacks.callback(stack.close)  # whoever is not done by then has nothing left
                outcomes[name] = pool.submit(_run, run, body, factory.mktemp("one"), stack)
            yield outcomes


def _run(run: Run, body: Body, root: Path, stack: contextlib.ExitStack) -> None:
    with stack:
        run(body, root, stack)


def _with_last(body: Body, value: object) -> Body:
    @functools.wraps(body)
    def with_value(*args: Any) -> None:
        body(*args, value)

    return with_value


def _named(test: Body, body: Body) -> Body:
    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    return test
