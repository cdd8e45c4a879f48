"""Which modules are in evaluation mode: records carry it, so that an eval() that was left on has a name.

Modes are read when a forward pass begins, in Python and outside of any graph. Read inside of a hook they would be one
more thing that compiled code is guarded on, and would have it compiled again.
"""

from __future__ import annotations

import ctypes

from torch import nn

from neuraldbg.native import NO_SITE, Segment
from neuraldbg.sites import Site


class ModeWatch:
    """Tells the segment of changed modes. Called by the thread that runs the forward pass."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._modules: list[nn.Module] = []
        self._sites: ctypes.Array[ctypes.c_uint32] = (ctypes.c_uint32 * 0)()
        self._known: list[bool] = []

    def watch(self, observed: list[tuple[nn.Module, Site]]) -> None:
        """From now on these modules, each with the site whose records carry its mode."""
        observed = [(module, site) for module, site in observed if site.id != NO_SITE]
        self._modules = [module for module, _ in observed]
        self._sites = (ctypes.c_uint32 * len(observed))(*[site.id for _, site in observed])
        self._known = []

    def pass_started(self) -> None:
        """Looks at the modes once more."""
        training = [module.training for module in self._modules]
        if training != self._known:
            self._known = training
            self._segment.modes(self._sites, bytes(not one for one in training))
