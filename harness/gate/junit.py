"""The gate's cases as JUnit XML, which CI systems show. Pure.

A regression is a failure. No readable verdict is neither a failure nor a success: skipped, which CI
systems show apart and which does not break a build. An engine whose cells ended badly is an error.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from harness.gate.result import GateResult, change_in_words, clean
from harness.gate.rule import Case


def junit_xml(result: GateResult) -> bytes:
    """One suite, one case for each arm and metric."""
    tags = [_tag(c, result) for c in result.cases]
    suite = ET.Element(
        "testsuite",
        name=clean(f"harness gate {result.experiment}".strip()),
        tests=str(len(result.cases)),
        failures=str(tags.count("failure")),
        errors=str(tags.count("error")),
        skipped=str(tags.count("skipped")),
        time="0",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("verdict", result.verdict),
        ("accepted", str(result.accepted).lower()),
        ("headline", result.headline),
        ("baseline", result.baseline or ""),
        ("candidate", result.candidate),
        ("margin_pct", f"{result.margin_pct:g}"),
        ("builds_then", " ".join(result.builds[0])),
        ("builds_now", " ".join(result.builds[1])),
    ):
        ET.SubElement(properties, "property", name=name, value=clean(value))
    for case, tag in zip(result.cases, tags, strict=True):
        element = ET.SubElement(
            suite,
            "testcase",
            classname=clean(f"gate.{result.experiment}.{case.arm}"),
            name=clean(case.metric),
            time="0",
        )
        text = "\n".join(map(clean, case.reasons))
        if tag is not None:
            message = clean(f"{case.metric}{change_in_words(case)}: {(*case.reasons, '')[0]}")
            inner = ET.SubElement(element, tag, message=message)
            if tag != "skipped":
                inner.set("type", "regression" if tag == "failure" else "cells ended badly")
            inner.text = text
        elif text:
            ET.SubElement(element, "system-out").text = text
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    content: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _tag(case: Case, result: GateResult) -> str | None:
    if case.outcome == "pass" or result.accepted:
        return None
    if case.outcome == "regression":
        return "failure"
    return "error" if case.failed else "skipped"
