"""Models from the Hugging Face hub, or put by hand where the hub's would be. May use the network.

`huggingface_hub` (extra `hub`) is imported only when something must be fetched.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.cachedir import require_space
from harness.errors import UsageError
from harness.models.config import HubModel

TIMEOUT_S = 15
# how often it is looked how much has come
LOOK_S = 0.5

# bytes that are here, and in all, where that is known
Tick = Callable[[int, int | None], None]


def folder_of(config: HubModel, cache: Path) -> Path:
    """Where the files of a repository are kept, and where they can be put by hand."""
    return cache / "models" / "hub" / config.repo.replace("/", "--")


def present(config: HubModel, cache: Path) -> Path | None:
    """The first file when all are there: under the repository's paths, or side by side."""
    folder = folder_of(config, cache)
    for names in (config.files, tuple(Path(f).name for f in config.files)):
        if all((folder / name).is_file() for name in names):
            return folder / names[0]
    return None


def locate(
    config: HubModel,
    cache: Path,
    *,
    fetch: bool,
    say: Callable[[str], None],
    tick: Tick = lambda _done, _total: None,
) -> tuple[Path, bool]:
    """The model's first file, and whether it was fetched now; `tick` is told, from another thread.

    UsageError, one line that says which files to put where, when they are neither here nor to be
    had.
    """
    if not config.files:
        raise UsageError(f"model {config.name}: model.files is empty; give the names of its files")
    found = present(config, cache)
    if found is not None:
        return found, False
    if not fetch:
        raise UsageError(_by_hand(config, cache, "not here"))
    # bars of its own would go through what `tick` shows
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        from huggingface_hub import constants, hf_hub_download
    except ImportError:
        raise UsageError(
            _by_hand(config, cache, "not here, and huggingface_hub is not installed")
            + ", or pip install 'moe-harness[hub]'"
        ) from None
    why = _unreachable(constants.ENDPOINT)
    if why is not None:
        raise UsageError(
            _by_hand(config, cache, f"not here, and the hub cannot be reached ({why})")
        )
    folder = folder_of(config, cache)
    folder.mkdir(parents=True, exist_ok=True)
    if config.bytes is not None:
        require_space(folder, config.bytes, f"the model {config.name}")
    for name in config.files:
        say(f"fetching {name} from {config.repo}")
        try:
            with _watched(folder, config.bytes, tick):
                hf_hub_download(
                    repo_id=config.repo,
                    filename=name,
                    revision=config.revision,
                    local_dir=folder,
                    etag_timeout=TIMEOUT_S,
                )
        except Exception as e:
            # the library raises some twenty kinds of its own and of its HTTP client's
            why = f"not here, and cannot be fetched ({type(e).__name__})"
            raise UsageError(_by_hand(config, cache, why)) from e
    return folder / config.files[0], True


@contextlib.contextmanager
def _watched(folder: Path, total: int | None, tick: Tick) -> Iterator[None]:
    """Tell how the folder grows: the library's own way to tell differs from version to version."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            tick(_bytes_below(folder), total)

    watcher = threading.Thread(target=watch, name="hub", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # renamed when it is whole
            total += path.stat().st_size if path.is_file() else 0
    return total


def _unreachable(endpoint: str) -> str | None:
    """Why the hub does not answer, None when it does.

    Asked first, because the library retries for half a minute and logs every attempt.
    """
    import urllib.error
    import urllib.request

    try:
        ask = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310
        urllib.request.urlopen(ask, timeout=TIMEOUT_S).close()  # noqa: S310
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as e:
        return " ".join(str(getattr(e, "reason", e)).split())
    return None


def _by_hand(config: HubModel, cache: Path, why: str) -> str:
    names = ", ".join(Path(f).name for f in config.files)
    return (
        f"model {config.name}: {names}: {why}; download it from "
        f"https://huggingface.co/{config.repo} into {folder_of(config, cache)}, "
        "or use model=path model.path=FILE"
    )
