"""Planted faults and healthy runs under one real daemon, scored.

    ./run evaluate [--only REGEX] [--modes eager,compiled] [--workers N] [--no-document]

Exit code 1 when the goal is missed: the cause (kind, module, step) first in 16 of 18 faults of every family and mode,
and no healthy run called FAULT.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from pathlib import Path

from tests.evaluate.daemon_process import Daemon
from tests.evaluate.document import table, write_section
from tests.evaluate.runner import Outcome, plan, run_jobs
from tests.scenarios.corpus import FAMILIES, HEALTHY, fault_names, healthy_names

REQUIRED = 16 / 18
MODES = ("eager", "compiled")


def mode_of(outcome: Outcome) -> str:
    """The name of the mode."""
    return MODES[outcome.job.compiled]


def progress(outcome: Outcome) -> None:
    """One line as a run ends."""
    mark = "ok  " if outcome.score.first else "MISS"
    verdict = f"{outcome.score.verdict}: {outcome.score.answer}"
    print(f"{mark} {outcome.job.scenario:26s} {mode_of(outcome):8s} {outcome.seconds:5.1f} s  {verdict}", flush=True)


def groups(outcomes: list[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """Faulty outcomes by family and mode."""
    result: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.truth.kinds:
            result.setdefault((outcome.job.scenario.partition("-")[0], mode_of(outcome)), []).append(outcome)
    return result


def summary(outcomes: list[Outcome]) -> str:
    """The section of docs/evaluation.md."""
    rows = []
    for (family, mode), members in groups(outcomes).items():
        latencies = sorted(o.score.latency for o in members if o.score.latency is not None)
        rows.append(
            [
                f"{family}, {mode}",
                f"{sum(o.score.detected for o in members)}/{len(members)}",
                f"**{sum(o.score.first for o in members)}/{len(members)}**",
                f"{sum(o.score.among_three for o in members)}/{len(members)}",
                str(latencies[len(latencies) // 2]) if latencies else "-",
            ]
        )
    parts = [
        "Six faults × three seeds per family and mode. The cause counts as found when kind, module and step (the onset "
        "or the step after it) are all right. No detector or threshold was tuned on these families.",
        table(["family, mode", "called FAULT", "cause first", "cause in first three", "median latency, steps"], rows),
    ]
    missed = [o for o in outcomes if o.truth.kinds and not o.score.first]
    if missed:
        parts.append("Causes that were not first:")
        parts.append(table(["run", "mode", "planted", "answer"], [_missed_row(o) for o in missed]))
    parts.append(
        "Healthy but tricky runs (three seeds each; multilayer perceptrons and GPT are the families that were tuned "
        "on); none may be called FAULT:"
    )
    parts.append(table(["run", "mode", "verdicts"], _healthy_rows(outcomes)))
    return "\n\n".join(parts)


def _missed_row(outcome: Outcome) -> list[str]:
    truth = outcome.truth
    planted = f"{truth.kinds[0]} {'in ' + truth.modules[0] if truth.modules[0] else ''} @{truth.step}"
    return [outcome.job.scenario, mode_of(outcome), planted, f"{outcome.score.verdict}: {outcome.score.answer}"]


def _healthy_rows(outcomes: list[Outcome]) -> list[list[str]]:
    rows = []
    for name in HEALTHY:
        for mode in MODES:
            members = [o for o in outcomes if o.job.scenario.startswith(f"healthy-{name}-") and mode_of(o) == mode]
            if members:
                said = [o.score.verdict + ("" if o.score.first else f" ({o.score.answer})") for o in members]
                rows.append([name, mode, ", ".join(said)])
    return rows


def failures(outcomes: list[Outcome]) -> list[str]:
    """What keeps this evaluation from its goal."""
    result = []
    for (family, mode), members in groups(outcomes).items():
        right = sum(o.score.first for o in members)
        if right < REQUIRED * len(members):
            result.append(f"{family}, {mode}: the cause was first in only {right} of {len(members)}")
    for outcome in outcomes:
        if not outcome.truth.kinds and not outcome.score.first:
            result.append(f"{outcome.job.scenario} is healthy and was called FAULT: {outcome.score.answer}")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression over scenario names")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-document", action="store_true", help="do not write docs/evaluation.md")
    parser.add_argument("--keep", type=Path, help="write every diagnosis, with its truth, to this JSON lines file")
    options = parser.parse_args(arguments)
    scenarios = [name for name in fault_names() + healthy_names() if re.search(options.only, name)]
    modes = options.modes.split(",")
    if not scenarios or not set(modes) <= set(MODES):
        parser.error(f"nothing to run: families are {', '.join((*FAMILIES, 'healthy'))}, modes {', '.join(MODES)}")
    with Daemon() as daemon:
        outcomes = run_jobs(daemon, plan(scenarios, modes), options.workers, progress)
    if options.keep:
        with options.keep.open("w") as lines:
            for o in outcomes:
                truth = {"kinds": o.truth.kinds, "modules": o.truth.modules, "step": o.truth.step}
                entry = {"scenario": o.job.scenario, "mode": mode_of(o), "truth": truth, "diagnosis": o.diagnosis}
                lines.write(json.dumps(entry) + "\n")
    text = summary(outcomes)
    print("\n" + text)
    if not options.no_document:
        # A part of the runs is documented as that part: the command says which.
        chosen = [f"--only {shlex.quote(options.only)}"] if options.only else []
        chosen += [f"--modes {options.modes}"] if options.modes != ",".join(MODES) else []
        write_section("evaluate", "Planted faults and healthy runs", " ".join(["./run evaluate", *chosen]), text)
    missed = failures(outcomes)
    print("\n".join(["", *missed]) if missed else "\ngoal reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
