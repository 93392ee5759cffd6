"""MLflow's client, for a store that several processes write to at once. Knows no MLflow.

MLflow looks whether a row is there and then inserts it. Of two that do so at the same moment the
database refuses one: for a dataset that two campaigns of one model share, or a tag of their sweep.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

# As SQLite, PostgreSQL and MySQL say it. In all these cases the database has undone the request
# whole, so that it may be asked for again, whatever it was.
_RACED = re.compile(
    r"unique constraint|UniqueViolation|Duplicate entry|deadlock|could not serialize|"
    r"database is locked",
    re.IGNORECASE,
)
ATTEMPTS = 5
# doubled each time, and drawn from half of it to the whole, lest both come back together
WAIT_S = 0.1


class SharedClient:
    """Every request of `client` is made again when another writer was in its way."""

    def __init__(self, client: Any) -> None:
        """`client`: mlflow.MlflowClient."""
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The client's own request of this name."""
        request = getattr(self._client, name)

        def ask(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(1, ATTEMPTS):
                try:
                    return request(*args, **kwargs)
                except Exception as e:  # over HTTP they have no class of their own
                    if not _RACED.search(str(e)):
                        raise
                    time.sleep(WAIT_S * 2**attempt * random.uniform(0.25, 0.5))  # noqa: S311
            return request(*args, **kwargs)

        return ask
