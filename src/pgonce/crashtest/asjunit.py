"""The report as JUnit XML: a suite a fault, a case a point, so that any CI shows it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pgonce.crashtest.astext import detail
from pgonce.crashtest.explore import Result
from pgonce.crashtest.report import Report
from pgonce.crashtest.verdict import Verdict

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(report: Report) -> str:
    """Return the XML text."""
    root = ElementTree.Element("testsuites", name="pgonce crashtest", time=f"{report.took_s:.3f}")
    for fault in report.faults:
        found = [result for result in report.results if result.trial.blow.fault is fault]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=fault.value,
            tests=str(len(found)),
            failures=str(sum(result.verdict.is_unsafe for result in found)),
            errors="0",
            skipped=str(sum(result.verdict is Verdict.UNREACHED for result in found)),
        )
        for result in found:
            _case(suite, report, result)
    _again(root, report)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, report: Report, result: Result) -> None:
    met = result.trial.met
    name = _clean(f"{met.point.id} {met.words} (no. {met.point.nth}, {result.trial.blow.name})")
    case = ElementTree.SubElement(
        suite, "testcase", classname=_clean(report.command), name=name, time=f"{result.took_s:.3f}"
    )
    if result.verdict.is_unsafe:
        failure = ElementTree.SubElement(case, "failure", type=result.verdict.value, message=_clean(result.why))
        failure.text = _clean("\n".join(detail(report, result)))
    elif result.verdict is Verdict.UNREACHED:
        ElementTree.SubElement(case, "skipped", message=_clean(result.why))


def _again(root: ElementTree.Element, report: Report) -> None:
    verdict, why = report.baseline.again
    suite = ElementTree.SubElement(
        root, "testsuite", name="no fault", tests="1", failures=str(int(verdict.is_unsafe)), errors="0", skipped="0"
    )
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(report.command), name="a second run")
    if verdict.is_unsafe:
        ElementTree.SubElement(case, "failure", type=verdict.value, message=_clean(why))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
