"""Sites: the observed places of one rank, their names and their properties, as the manifest holds them.

A SiteTable owns the numbering. It is written by the thread that attaches and by the first forward pass; later only
properties change. Names: "m:output", "m:input" (glue), "m:merge" (a container's own operation), each with ".grad";
"m#1:output" is the second call of m in a pass; parameters "m.weight"; "optimizer[0]", "loss", "batch[0]", "step". The
root module's path is empty: ":merge".
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum

import torch

from neuraldbg import ops
from neuraldbg.native import NO_SITE, Segment, SiteRecord


class Role(enum.IntEnum):
    """SiteRole of shared/manifest.h."""

    OUTPUT = 0
    INPUT = 1
    MERGE = 2
    OUTPUT_GRADIENT = 3
    INPUT_GRADIENT = 4
    MERGE_GRADIENT = 5
    PARAMETER = 6
    OPTIMIZER = 7
    LOSS = 8
    BATCH = 9
    STEP = 10
    SYSTEM = 11


class Phase(enum.IntEnum):
    """Phase of shared/record.h."""

    DATA = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    GRADIENT_SYNC = 4
    OPTIMIZER = 5
    PARAMETER = 6
    SYSTEM = 7


class Level(enum.IntEnum):
    """ObservationLevel of shared/manifest.h."""

    FUSED = 0
    TAP = 1
    FORWARD_ONLY = 2
    EAGER = 3
    NOT_OBSERVED = 4


class Units(enum.IntEnum):
    """ndbg_unit_mode: which dimension `dead_units` counts over."""

    NONE = 0
    LAST_DIM = 1
    DIM1 = 2


class Saturation(enum.IntEnum):
    """ndbg_saturation."""

    NONE = 0
    TANH = 1
    SIGMOID = 2
    SOFTMAX = 3


class Dead(enum.IntEnum):
    """ndbg_dead: what makes a unit dead in one call."""

    NEVER_NONZERO = 0
    NEVER_POSITIVE = 1


GRADIENT_OF = {
    Role.OUTPUT: Role.OUTPUT_GRADIENT,
    Role.INPUT: Role.INPUT_GRADIENT,
    Role.MERGE: Role.MERGE_GRADIENT,
}
ROLE_SUFFIX = {Role.OUTPUT: "output", Role.INPUT: "input", Role.MERGE: "merge"}

# DType of shared/record.h.
_DTYPES = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.int64: 5,
    torch.int32: 6,
    torch.int16: 7,
    torch.int8: 8,
    torch.uint8: 9,
    torch.bool: 10,
    torch.complex64: 11,
    torch.complex128: 12,
    torch.float8_e4m3fn: 13,
    torch.float8_e5m2: 13,
}

_SATURATION = {
    "Tanh": Saturation.TANH,
    "Sigmoid": Saturation.SIGMOID,
    "Softmax": Saturation.SOFTMAX,
    "Softmax2d": Saturation.SOFTMAX,
}
# These never give exactly zero, so a unit of theirs is dead when no output of it is positive.
_NEVER_POSITIVE = frozenset({"GELU", "SiLU", "Mish", "ELU", "CELU", "SELU", "LeakyReLU", "PReLU", "RReLU"})
_CHANNEL_DIMENSIONS = (4, 5)  # N, C and two or three spatial dimensions: the units are the channels
_MAX_DIMENSIONS = 8  # kMaxDimensions


@dataclasses.dataclass
class Site:
    """One observed place; mirrors SiteEntry of shared/manifest.h."""

    name: str
    role: Role
    phase: Phase
    module: str = ""
    module_kind: str = ""
    owner: str = ""
    dtype: int = 0
    level: Level = Level.FUSED
    requires_grad: bool = False
    topological_index: int = 0
    twin: int = NO_SITE
    covered_by: int = NO_SITE
    tie_group: int = 0
    optimizer_group: int = NO_SITE
    units: Units = Units.NONE
    saturation: Saturation = Saturation.NONE
    dead: Dead = Dead.NEVER_NONZERO
    shape: tuple[int, ...] = ()
    id: int = NO_SITE

    def describe_tensor(self, shape: tuple[int, ...], dtype: torch.dtype | None, requires_grad: bool) -> None:
        """Takes over what is known of the site's tensor."""
        self.shape = shape
        self.dtype = dtype_number(dtype)
        self.requires_grad = requires_grad
        if self.role in ROLE_SUFFIX and shape:
            self.units = Units.DIM1 if len(shape) in _CHANNEL_DIMENSIONS else Units.LAST_DIM

    def record(self) -> SiteRecord:
        """The site as the C interface takes it."""
        shape = self.shape[:_MAX_DIMENSIONS]
        return SiteRecord(
            name=self.name.encode(),
            module=self.module.encode(),
            module_kind=self.module_kind.encode(),
            owner=self.owner.encode(),
            role=self.role,
            phase=self.phase,
            dtype=self.dtype,
            level=self.level,
            requires_grad=self.requires_grad,
            topological_index=self.topological_index,
            twin=self.twin,
            covered_by=self.covered_by,
            tie_group=self.tie_group,
            optimizer_group=self.optimizer_group,
            unit_mode=self.units,
            saturation=self.saturation,
            dead=self.dead,
            shape=(ctypes.c_uint64 * max(1, len(shape)))(*shape),
            dimensions=len(shape),
        )


def gradient_level(level: Level) -> Level:
    """The level of a gradient whose forward site has this one."""
    return Level.NOT_OBSERVED if level is Level.FORWARD_ONLY else level


def dtype_number(dtype: torch.dtype | None) -> int:
    """DType of shared/record.h; 0 where there is none."""
    return _DTYPES.get(dtype, 0) if dtype is not None else 0


def clean_path(path: str) -> str:
    """The path as in named_modules() of the user's model: without what torch.compile and DDP put in between."""
    parts = [part for part in path.split(".") if part != "_orig_mod"]
    # DistributedDataParallel is always the outermost module, so its "module." can only stand in front.
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


class SiteTable:
    """The sites of one segment, in the order of their ids.

    add() and update() write through to the manifest. A site that does not fit there gets the id NO_SITE; its slot is
    then one that the operators ignore.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.by_name: dict[str, Site] = {}
        self._next_id = 0

    def add(self, site: Site) -> Site:
        """Announces a new site."""
        site.id = self._segment.add_site(site.record())
        if site.id != NO_SITE:
            self._next_id = site.id + 1
        self.by_name[site.name] = site
        return site

    def update(self, site: Site) -> None:
        """Announces what changed in a site."""
        if site.id != NO_SITE:
            self._segment.update_site(site.id, site.record())

    def add_activation(
        self, path: str, kind: str, role: Role, owner: str = "", level: Level = Level.FUSED, place: str = ""
    ) -> tuple[Site, Site]:
        """A forward site and its gradient's, with consecutive ids and each other's twin.

        `place` stands for the path in their names where the module runs more than once in a pass.
        """
        name = f"{place or path}:{ROLE_SUFFIX[role]}"
        next_id = self._next_id
        forward = Site(
            name,
            role,
            Phase.FORWARD,
            module=path,
            module_kind=kind,
            owner=owner,
            level=level,
            twin=next_id + 1,
            topological_index=next_id,
            units=Units.LAST_DIM,
            saturation=_SATURATION.get(kind, Saturation.NONE) if role is Role.OUTPUT else Saturation.NONE,
            dead=Dead.NEVER_POSITIVE if kind in _NEVER_POSITIVE else Dead.NEVER_NONZERO,
        )
        gradient = Site(
            f"{name}.grad",
            GRADIENT_OF[role],
            Phase.BACKWARD,
            module=path,
            module_kind=kind,
            owner=owner,
            level=gradient_level(level),
            twin=next_id,
            topological_index=next_id,
        )
        return self.add(forward), self.add(gradient)

    def gradient_of(self, site: Site) -> Site:
        """The gradient's site of a forward site."""
        return self.by_name[f"{site.name}.grad"]

    def slot(self, site: Site) -> torch.Tensor:
        """The tensor that the operators take for this site (rule 3: a tensor, never a Python number)."""
        return ops.slot_tensor(self._segment.slot(site.id) if site.id != NO_SITE else -1)

    def planned(self) -> int:
        """Number of sites that report in a fully observed step."""
        return sum(site.level is not Level.NOT_OBSERVED for site in self.by_name.values())
