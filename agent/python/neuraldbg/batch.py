"""The batch: BATCH records of a root module's tensor inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from neuraldbg.sites import Phase, Role, Site, SiteTable

MAX_INPUTS = 8  # inputs beyond these (past key values, say) describe no batch


def input_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among a root module's inputs, one level of list, tuple, dict or dataclass deep. Traced by Dynamo."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend([item for item in value if isinstance(item, Tensor)])
        elif isinstance(value, dict):
            found.extend([item for item in value.values() if isinstance(item, Tensor)])
        elif hasattr(value, "__dataclass_fields__"):
            items = [getattr(value, name, None) for name in value.__dataclass_fields__]
            found.extend([item for item in items if isinstance(item, Tensor)])
    return found


def samples_in(tensors: list[Tensor]) -> int:
    """Size of the leading dimension of the first input."""
    return tensors[0].shape[0] if tensors and tensors[0].dim() > 0 else 0


def add_sites(sites: SiteTable, tensors: list[Tensor], first: int) -> list[Site]:
    """Announces "batch[first]" and so on for a root's inputs."""
    added = []
    for index, tensor in enumerate(tensors[:MAX_INPUTS], start=first):
        site = Site(f"batch[{index}]", Role.BATCH, Phase.DATA)
        site.describe_tensor(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        added.append(sites.add(site))
    return added
