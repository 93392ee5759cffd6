"""A campaign in Markdown, short enough for a pull request, as GitHub renders it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.analysis.verdict_words import headline
from harness.report import facts_cells, facts_course, facts_environment, facts_verdict
from harness.report.contents import Contents, command, in_one_line, judge_again
from harness.report.shown import Cell, Shown

# rows of a table; a comment is read, not scrolled
_MOST_ROWS = 20
# what Markdown, or the HTML in it, would take for its own
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$])")
# what GitHub makes a link of, also where it is escaped: people and issues
_LINKED = re.compile(r"(@(?=\w)|#(?=\d))")


def markdown_report(contents: Contents) -> str:
    """Ends with a newline."""
    verdict = contents.verdict
    parts = [
        f"### {_text(headline(verdict))}.",
        f"{_text(contents.name)}: {_text(', '.join(in_one_line(contents)))}",
    ]
    if verdict.verdicts:
        parts.append(_table(facts_verdict.effects_table(verdict)))
        parts += [
            f"- {_text(said.head)}" + _under([said.carried_by, *said.reasons])
            for said in facts_verdict.candidates(contents)
        ]
        shared = facts_verdict.shared_reasons(verdict.verdicts)
        if shared:
            parts.append(f"- for all candidates{_under(shared)}")
    parts.append(
        f"**Drift:** {_text(facts_verdict.drift_in_words(verdict))}{_under(verdict.drift.reasons)}"
    )
    parts += [f"- {_text(line)}" for line in facts_verdict.finding_lines(verdict)]
    parts += [_folded(t.caption, t) for t in facts_verdict.findings(verdict)]
    out = facts_course.left_out(contents)
    parts.append(
        _folded(f"Left out, and why ({len(out.rows)})", out) if out else "Nothing was left out."
    )
    troubles = facts_course.troubles(contents)
    if troubles:
        parts.append(_folded(f"Failures, excursions, notes ({len(troubles.rows)})", troubles))
    parts.append(_folded("Counters", facts_cells.counters_by_arm(contents.plan, contents.records)))
    parts.append(_environment(contents))
    line = command(contents)
    again = "" if line is None else f"\n# measured by\n{line}"
    parts.append(_fenced(f"{again}\n# the same records judged again\n{judge_again(contents)}"))
    return "\n\n".join(_joined([p for p in parts if p])) + "\n"


def _joined(parts: list[str]) -> list[str]:
    """Points of a list that follow on each other stay one list."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("- ") and joined and joined[-1].startswith("- "):
            joined[-1] += f"\n{part}"
        else:
            joined.append(part)
    return joined


def _under(lines: Iterable[str | None]) -> str:
    """Points below a line."""
    return "".join(f"\n  - {_text(line)}" for line in lines if line)


def _environment(contents: Contents) -> str:
    if contents.imported is not None:
        where = contents.imported.get("source")
        said = f"imported from {_text(str(where))}" if where else "not known"
        return f"**Environment:** {said}"
    if contents.environment.wrong is not None:
        return f"**Environment:** not known: {_text(contents.environment.wrong)}"
    lines = [f"- {name}: {_text(text)}" for name, text in facts_environment.briefly(contents)]
    return "**Environment**\n\n" + "\n".join(lines)


def _folded(title: str, table: Shown) -> str:
    if not table:
        return ""
    return f"<details><summary>{_html(title)}</summary>\n\n{_table(table)}\n\n</details>"


def _table(table: Shown) -> str:
    heads = [_text(head) or " " for head in table.heads]
    rule = ["--:" if numeric else ":--" for numeric in table.numeric]
    lines = [_row(heads), _row(rule)]
    lines += [_row([_cell(c) for c in row]) for row in table.rows[:_MOST_ROWS]]
    more = len(table.rows) - _MOST_ROWS
    notes = [f"and {more} more rows: see report.html"] if more > 0 else []
    return "\n".join(lines) + "".join(f"\n\n{_text(note)}" for note in [*notes, *table.notes])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = f"*{_text(cell.text)}*" if cell.absent and cell.text != "–" else _text(cell.text)
    return f"{text} **{_text(cell.mark)}**" if cell.mark else text


def _text(words: str) -> str:
    """In one line, and shown as it is: no markup, no HTML, nobody mentioned."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(words.split()))
    return _LINKED.sub(r"\1<!-- -->", escaped)


def _html(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _fenced(text: str) -> str:
    """A block of code that no text in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text.strip()}\n{fence}"
