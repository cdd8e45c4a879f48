"""Start-up file of `neuraldbg run`: Python imports it first, in the job and in every Python that the job starts."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys


def _run_shadowed_file() -> None:
    """Runs the sitecustomize that this one stands in front of, if there is one."""
    here = pathlib.Path(__file__).resolve().parent
    path = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("NEURALDBG_AUTORUN") == "1":
    try:
        from neuraldbg_autorun import watch_for_torch

        watch_for_torch()
    except Exception as error:  # the job must start, whatever this meets
        print(f"neuraldbg: the job is not observed: {error}", file=sys.stderr)
_run_shadowed_file()
