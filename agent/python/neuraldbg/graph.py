"""The module graph: which site's tensor was computed from which others', from one forward pass on a fake copy.

Every tensor carries the set of sites that most recently produced it. An operation between modules passes on the union
of its inputs' sets; a site replaces the set of its tensor by itself. Three kinds of sites arise:
  output  of a leaf module;
  input   ("glue") of a leaf module, where functional code computed the tensor: a residual add, attention, F.relu;
  merge   output of a container that its own code computed.
A container whose output is exactly a child's has none of its own: it is covered by the child's site. So edges stay
linear in depth, and functional code has an address.

A module that runs several times in the pass (a Dropout used twice, weights shared over the depth) is one node a call:
merged, it would feed its own inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

from neuraldbg.batch import input_tensors
from neuraldbg.fake_clone import FakeClone, tensors_in
from neuraldbg.release import OLD
from neuraldbg.sites import Role

Key = tuple[str, Role]  # (place, role); ("0", Role.BATCH) is the first model input
_MAX_CALLS = 16  # kMaxCalls of the library; a module that runs more often is a loop, and one node

_CHECKPOINTED = CheckpointFunction.forward.__code__

# Operations that only look at a tensor in another shape: what comes out is still the producer's tensor.
_VIEWS = frozenset(
    "view _unsafe_view transpose permute t unsqueeze squeeze expand detach alias flatten reshape _reshape_alias clone "
    "select unbind split split_with_sizes slice chunk narrow _to_copy".split()
)


class GraphError(RuntimeError):
    """The forward pass cannot run on fake tensors; the caller falls back to execution order."""


@dataclasses.dataclass
class Node:
    """One forward site of the graph. `owner`: module whose own code computed the tensor."""

    key: Key
    module: str
    call: int  # n-th call of the module in this pass
    kind: str
    owner: str
    parents: set[Key]
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@dataclasses.dataclass(frozen=True)
class Call:
    """What a hook of a module sees in one of its calls: a node, or (None) a tensor of the sites in `origins`."""

    key: Key | None
    origins: frozenset[Key]
    requires_grad: bool


@dataclasses.dataclass
class ModuleGraph:
    """Nodes in the order of the forward pass; sinks are what the root's output derives from."""

    nodes: dict[Key, Node] = dataclasses.field(default_factory=dict)
    sinks: set[Key] = dataclasses.field(default_factory=set)
    covered: dict[str, Key] = dataclasses.field(default_factory=dict)  # container path -> node with its output
    # Fake model inputs, in the order of "batch[i]".
    inputs: list[torch.Tensor] = dataclasses.field(default_factory=list)
    # What the input hook and the output hook of a module see, call by call.
    input_calls: dict[str, list[Call]] = dataclasses.field(default_factory=dict)
    output_calls: dict[str, list[Call]] = dataclasses.field(default_factory=dict)

    def feeding(self) -> set[Key]:
        """The sites whose tensors go into the root's output, and so get a gradient."""
        found: set[Key] = set()
        waiting = list(self.sinks)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                node = self.nodes.get(key)
                waiting.extend(node.parents if node is not None else ())
        return found

    def merge_loops(self) -> None:
        """Makes one node again of modules that ran too often. What would close a circle is no edge."""
        loops = {path for path, calls in self.output_calls.items() if len(calls) > _MAX_CALLS}
        if not loops:
            return
        merged = {key: (node.module, key[1]) for key, node in self.nodes.items() if node.module in loops}
        nodes, self.nodes = self.nodes, {}
        order: dict[Key, int] = {}
        for key, node in nodes.items():
            node.key = merged.get(key, key)
            first = self.nodes.setdefault(node.key, node)
            position = order.setdefault(node.key, len(order))
            parents = {merged.get(parent, parent) for parent in node.parents} | (
                first.parents if first is not node else set()
            )
            first.parents = {one for one in parents if one[1] is Role.BATCH or order.get(one, position) < position}
        self.sinks = {merged.get(key, key) for key in self.sinks}
        self.covered = {path: merged.get(key, key) for path, key in self.covered.items()}
        for calls in (self.input_calls, self.output_calls):
            for path in loops:
                calls.pop(path, None)


@dataclasses.dataclass(frozen=True)
class _Origin:
    """What is known of a tensor: the sites it comes from, and whether it is one of theirs, only viewed."""

    sites: frozenset[Key] = frozenset()
    pure: bool = False
    owner: str = ""


class _Provenance(TorchDispatchMode):
    """Follows every operation of the pass. Not reentrant; lives for one pass."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: dict[int, _Origin] = {}
        self._alive: list[torch.Tensor] = []  # an id is only meaningful while its tensor lives
        self.stack: list[str] = [""]  # paths of the modules that are running

    def get(self, tensor: torch.Tensor) -> _Origin:
        """What is known of a tensor; nothing by default."""
        return self._origins.get(id(tensor), _Origin())

    def put(self, tensor: torch.Tensor, origin: _Origin) -> None:
        """Notes where a tensor comes from."""
        self._origins[id(tensor)] = origin
        self._alive.append(tensor)

    def of(self, tensors: list[torch.Tensor]) -> frozenset[Key]:
        """All sites that these tensors come from."""
        return frozenset().union(*[self.get(tensor).sites for tensor in tensors])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in([args, kwargs])
        if func._schema.is_mutable and any(not isinstance(tensor, FakeTensor) for tensor in inputs):
            # The pass reached a tensor past the copy. Writing to it would change the user's model.
            raise GraphError(f"{func} would write to a tensor of the user")
        out = func(*args, **kwargs)
        traced = [tensor for tensor in inputs if self.get(tensor).sites]
        sites = self.of(traced)
        view = func._overloadpacket.__name__ in _VIEWS and len(traced) == 1 and self.get(traced[0]).pure
        owner = self.get(traced[0]).owner if view else self.stack[-1]
        for tensor in tensors_in(out):
            merged = sites | self.get(tensor).sites if any(tensor is one for one in inputs) else sites
            self.put(tensor, _Origin(merged, view, owner))
        return out


class _Walk:
    """The hooks of one pass over the copy; fills a ModuleGraph."""

    def __init__(self, graph: ModuleGraph, provenance: _Provenance, paths: dict[nn.Module, str]) -> None:
        self._graph = graph
        self._provenance = provenance
        self._paths = paths
        self._parents: dict[nn.Module, set[Key]] = {}
        self._calls: dict[str, int] = {}
        self._running: list[int] = []  # numbers of the calls that are running, the innermost last

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook: finds out where the inputs come from."""
        path = self._paths[module]
        self._provenance.stack.append(path)
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        self._running.append(call)
        if _is_leaf(module):
            self._parents[module] = self._leaf_parents(path, call, type(module).__name__, tensors_in([args, kwargs]))

    def _leaf_parents(self, path: str, call: int, kind: str, tensors: list[torch.Tensor]) -> set[Key]:
        parents: set[Key] = set()
        glue_taken = False
        seen: Call | None = None
        for tensor in tensors:
            origin = self._provenance.get(tensor)
            floating = tensor.is_floating_point()
            if floating and seen is None:  # the hook observes the first one
                seen = Call(None, origin.sites, _gets_gradient(tensor))
            if not floating:
                parents |= origin.sites
            elif origin.pure and len(origin.sites) == 1:
                parents |= origin.sites
                glue_taken = True
            elif not glue_taken and origin.sites:
                # The hook observes the first floating-point input, so only that one can be a site.
                glue_taken = True
                glue = self._site(path, Role.INPUT, call, kind, origin.owner, set(origin.sites), tensor)
                seen = Call(glue, frozenset([glue]), _gets_gradient(tensor))
                parents.add(glue)
            else:
                glue_taken = True
                parents |= origin.sites
        if seen is not None:
            self._graph.input_calls.setdefault(path, []).append(seen)
        return parents

    def after(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Forward hook: the output is now the site's own."""
        path = self._paths[module]
        self._provenance.stack.pop()
        call = self._running.pop()
        floating = [tensor for tensor in tensors_in(out) if tensor.is_floating_point()]
        if not floating:
            return
        origin = self._provenance.get(floating[0])
        key: Key | None = None
        if _is_leaf(module):
            key = self._site(path, Role.OUTPUT, call, type(module).__name__, path, self._parents[module], floating[0])
            for tensor in floating[1:]:
                self._provenance.put(tensor, _Origin(frozenset([key]), False, path))
        elif origin.pure and len(origin.sites) == 1:
            self._graph.covered.setdefault(path, next(iter(origin.sites)))
        elif origin.sites:
            key = self._site(
                path, Role.MERGE, call, type(module).__name__, origin.owner, set(origin.sites), floating[0]
            )
        origins = origin.sites if key is None else frozenset([key])
        self._graph.output_calls.setdefault(path, []).append(Call(key, origins, _gets_gradient(floating[0])))

    def _site(
        self, path: str, role: Role, call: int, kind: str, owner: str, parents: set[Key], tensor: torch.Tensor
    ) -> Key:
        key = place(path, call), role
        self._graph.nodes[key] = Node(
            key, path, call, kind, owner, parents, tuple(tensor.shape), tensor.dtype, _gets_gradient(tensor)
        )
        self._provenance.put(tensor, _Origin(frozenset([key]), True, path))
        return key


def place(path: str, call: int) -> str:
    """Name of the n-th call of a module in a pass: the module's own for the first."""
    return path if call == 0 else f"{path}#{call}"


# Torch keeps its stance on compiling, and whether a dispatch mode is on, for the whole process. Two threads that saved
# and restored them by turns would leave torch.compile switched off for good, in silence.
_one_at_a_time = threading.Lock()
_WAIT_SECONDS = 10.0  # default: a pass on fake tensors takes less, and a job must not stand still for its graph


def trace_module_graph(
    root: nn.Module, paths: dict[nn.Module, str], args: tuple[Any, ...], kwargs: dict[str, Any], first_batch: int = 0
) -> ModuleGraph:
    """Runs the root's forward pass on a fake copy. `paths` names the original modules; the inputs may be real or fake.

    Raises GraphError whatever goes wrong: user code runs here, on tensors without values.
    """
    if OLD and threading.current_thread() is not threading.main_thread():
        raise GraphError("this release of torch crashes where fake tensors are made in more than one thread")
    if not _one_at_a_time.acquire(timeout=_WAIT_SECONDS):
        raise GraphError("another thread takes the graph of its model all the time")
    try:
        return _trace(root, paths, args, kwargs, first_batch)
    finally:
        _one_at_a_time.release()


def _trace(
    root: nn.Module, paths: dict[nn.Module, str], args: tuple[Any, ...], kwargs: dict[str, Any], first_batch: int
) -> ModuleGraph:
    graph = ModuleGraph()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _untouched_surroundings():
            clone = FakeClone(mode)
            copy = clone.module(root)
            fake_args, fake_kwargs = clone.inputs(args), clone.inputs(kwargs)
            graph.inputs = input_tensors(fake_args, fake_kwargs)
            provenance = _Provenance()
            for index, tensor in enumerate(graph.inputs):
                provenance.put(tensor, _Origin(frozenset([(str(first_batch + index), Role.BATCH)]), True))
            named = {module: paths[original] for module, original in clone.originals.items() if original in paths}
            walk = _Walk(graph, provenance, named)
            for module in named:
                module.register_forward_pre_hook(walk.before, with_kwargs=True)
                module.register_forward_hook(walk.after, with_kwargs=True)
            with mode, provenance:
                out = copy(*fake_args, **fake_kwargs)
            graph.sinks = set(provenance.of(tensors_in(out)))
            graph.merge_loops()
            return graph
    except Exception as error:
        raise GraphError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _untouched_surroundings() -> Iterator[None]:
    """Keeps random states, autocast cache and compiled submodules out of the pass, and gradients recorded.

    Checkpointing round the model would count what this pass saves as its own, and a dispatch mode of the user's (a
    counter of operations, a cache of activations) would see a pass that never was.
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.get_rng_state()
    autocast_cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.compiler.set_stance("force_eager"),
            _disable_current_modes(),
            saved_tensors_hooks(_itself, _itself),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(autocast_cache)
        torch.set_rng_state(torch_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
        random.setstate(python_state)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _gets_gradient(tensor: torch.Tensor) -> bool:
    """Whether a gradient will come to this tensor, as far as the pass shows.

    Reentrant checkpointing runs its region without autograd at first; the run that counts follows in backward.
    """
    if tensor.requires_grad or torch.is_grad_enabled():
        return tensor.requires_grad
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _CHECKPOINTED:
        frame = frame.f_back
    return frame is not None and any(one.requires_grad for one in tensors_in(frame.f_locals["args"]))


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None
