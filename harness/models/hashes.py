"""SHA-256 of model files, remembered. Reads models, writes the cache.

A file is hashed once; after that its hash is looked up by path, size, modification time and inode.
That is an accelerator against accidents, not against someone who forges times: delete
`<cache>/hashes` to have everything hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.cachedir import guarded, read_json, sha256_file, write_json

Tick = Callable[[int, int], None]


def files_sha256(files: Sequence[Path], cache: Path, tick: Tick | None = None) -> str:
    """SHA-256 of a model: of its file, or of the list of its shards' hashes, one a line, in order.

    `tick` receives bytes hashed and bytes in all; it is not called when everything is known.
    """
    with guarded("hashing the model", files[0]):
        total = sum(f.stat().st_size for f in files)
        done = 0
        digests = []
        for file in files:
            digests.append(_one(file, cache, tick, done, total))
            done += file.stat().st_size
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()


def remember(file: Path, cache: Path, sha256: str) -> None:
    """Store the hash of a file that was just written."""
    # only an accelerator: a full or read-only cache costs time, not the result
    with contextlib.suppress(OSError):
        write_json(_entry(file, cache), {"path": str(file), "sha256": sha256})


def _entry(file: Path, cache: Path) -> Path:
    stat = file.stat()
    identity = f"{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
    return cache / "hashes" / f"{hashlib.sha256(os.fsencode(identity)).hexdigest()[:32]}.json"


def _one(file: Path, cache: Path, tick: Tick | None, before: int, total: int) -> str:
    known = read_json(_entry(file, cache))
    if known is not None and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    done = before

    def count(n: int) -> None:
        nonlocal done
        done += n
        if tick is not None:
            tick(done, total)

    sha256 = sha256_file(file, count)
    remember(file, cache, sha256)
    return sha256
