"""NeuralDBG's agent: attach it to a training job, and the daemon names the cause when the training goes wrong."""

from __future__ import annotations

import importlib.metadata

_DISTRIBUTION = "neuraldbgd"
_UNRELATED = "neuraldbg"  # another project's package on PyPI, with the same import name


def _refuse_unrelated_package() -> None:
    try:
        importlib.metadata.distribution(_UNRELATED)
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the unrelated package {_UNRELATED!r} is installed and shares the import name of {_DISTRIBUTION!r}: "
        f"pip uninstall {_UNRELATED}, then reinstall {_DISTRIBUTION}"
    )


def _version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"  # a source tree that was not installed


_refuse_unrelated_package()

from neuraldbg.attach import attach  # noqa: E402
from neuraldbg.classic import NeuralDbg  # noqa: E402
from neuraldbg.diagnosis import Report  # noqa: E402
from neuraldbg.session import Session  # noqa: E402

__version__ = _version()
__all__ = ["NeuralDbg", "Report", "Session", "__version__", "attach"]
