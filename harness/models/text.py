"""The text that cells decode: held out from the reference model's training, or a user's file.

Reads the file, writes nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import UsageError
from harness.models.resolve import DATA
from harness.planned import GivenText

HELDOUT = "heldout"
HELDOUT_FILE = DATA / "reference-heldout.txt"


def given_text(text: str, key: str) -> GivenText:
    """What `text`, a path or `heldout`, stands for; `key` is where it was configured.

    UsageError, one line, for what is no text. How many tokens it has only the engine can say.
    """
    path = HELDOUT_FILE if text == HELDOUT else Path(text).expanduser().absolute()
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "there is no such file"
        raise UsageError(f"{key}: {path}: {wrong}; give a text file, {HELDOUT}, or null")
    try:
        content = path.read_bytes()
        content.decode()
    except OSError as e:
        raise UsageError(f"{key}: {path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{key}: {path}: is not valid UTF-8; give a text file") from None
    if not content:
        raise UsageError(f"{key}: {path}: is empty; give a text of n_predict tokens or more")
    return GivenText(str(path), hashlib.sha256(content).hexdigest())
