"""Adds up the JUnit files of all suites and prints the closing line; exit 1 if a test or a suite failed."""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path: pathlib.Path) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"} or case.get("status") == "fail":
            failed += 1
            print(f"failed: {path.stem}: {case.get('classname', '')} {case.get('name', '')}")
        elif "skipped" in outcomes or case.get("status") in ("disabled", "notrun"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    results, failed_suites = pathlib.Path(sys.argv[1]), sys.argv[2:]
    totals = [sum(column) for column in zip(*map(count, sorted(results.glob("*.xml"))), strict=True)] or [0, 0, 0]
    passed, failed, skipped = totals
    if failed_suites:
        print("suites that failed:", ", ".join(failed_suites))
        failed = max(failed, 1)  # a suite that broke before its first test counts
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
