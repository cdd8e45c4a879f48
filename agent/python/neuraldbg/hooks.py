"""The hooks on modules: what turns a tensor at a module boundary into a record.

Five rules keep them alive under torch.compile (docs/compatibility.md); broken, each of them loses records silently:
 1. the operator is effectful and declares no mutation (ops.py), and is never called inside an autograd.Function;
 2. gradients come from `tensor.register_hook` called in a forward hook, never from module backward hooks;
 3. the site is a tensor that hangs on the module: a Python number would recompile every block of a regionally
    compiled model;
 4. Dynamo guards on hooks (compiled.py), or one instance's cached code would silence another's hooks;
 5. hooks are there before the first compiled call, or that code is discarded (compiled.py).

Each kind of hook exists once and is shared by all modules. Dynamo traces it where the module is inlined into a graph.
Where a module is itself the root of a compiled graph, the hook would become a graph of its own; its code is therefore
marked as not to be compiled as a frame, and runs eagerly beside the graph, at no extra graph and with the same records.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import symbolic_convert

from neuraldbg import ops
from neuraldbg.batch import input_tensors, samples_in
from neuraldbg.shards import local_part, part_of

logger = logging.getLogger("neuraldbg")

ATTRIBUTE = "_neuraldbg"

_tracing = getattr(symbolic_convert, "tls", None)  # what Dynamo is tracing in this thread
_BRANCHES = frozenset({"cond", "while_loop", "map", "map_impl", "scan", "associative_scan"})

# Functions of C, so that asking is no frame that Dynamo could compile; bound here, since every hook asks.
_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
_jit_trace: Callable[[], Any] = torch._C._get_tracing_state
_frame_callback: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback


class Slots:
    """What hangs on a module: the slots of its sites. Copies and pickles of the module carry None instead."""

    __slots__ = ("batch", "gradient", "input", "input_gradient", "output", "session", "token")

    def __init__(self) -> None:
        self.output: Tensor | None = None
        self.gradient: Tensor | None = None
        self.input: Tensor | None = None
        self.input_gradient: Tensor | None = None
        # Root modules only:
        self.batch: tuple[Tensor, ...] = ()
        self.token: Tensor | None = None
        self.session: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


class _SharedHook:
    """A hook that does nothing in copies of the module: a copy (an EMA, say) must not report as the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A callable of the standard library that takes any arguments and returns None: a pickle of the model must not
        # need this package to be read.
        return getattr, (contextlib.nullcontext(), "__exit__")


def observable(value: Any) -> Tensor | None:
    """The first floating-point tensor in a module's input or output, in the order of the structure."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return None
        return value
    if isinstance(value, (list, tuple)):
        for item in value:
            found = observable(item)
            if found is not None:
                return found
    elif isinstance(value, dict):
        for item in value.values():
            found = observable(item)
            if found is not None:
                return found
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            found = observable(getattr(value, name, None))
            if found is not None:
                return found
    return None


@torch.compiler.assume_constant_result
def _beside_training() -> bool:
    """Whether this pass is none of the training's, and nothing of it is to be read or left in a graph.

    That is in a transform of torch.func, which wraps tensors and knows no rule for an operator that returns nothing
    (while Dynamo traces through one it is there as well, and graphs are guarded on it); in torch.jit.trace and
    torch.export, whose graphs are to run elsewhere; and in the body of a torch.cond, a while_loop or the like, which
    takes neither effects nor hooks on tensors: the user's own call would raise.
    """
    if _transform() is not None or _jit_trace() is not None or torch.compiler.is_exporting():
        return True
    translator = getattr(_tracing, "current_tx", None)
    if translator is None:
        return False
    tracer = translator.output.current_tracer
    while tracer is not None:
        if getattr(getattr(tracer, "source_target", None), "__name__", "") in _BRANCHES:
            return True
        tracer = getattr(tracer, "parent", None)
    return False


_taps = False  # whether gradients inside of graphs are reached by taps (self_test.py)


def set_taps(used: bool) -> None:
    """How graphs that are traced from now on reach gradients: by taps (ops.tap), or by hooks on their tensors."""
    global _taps
    _taps = used


def _observe_with_gradient(tensor: Tensor, slot: Tensor, gradient_slot: Tensor | None, given: Any, whole: Any) -> Any:
    """Observes `tensor`, which stands in `whole` (a module's input or output); what takes the place of `whole`, if any.

    `given` is what a module made it from.
    """
    # requires_grad is a constant of a trace: what changes it, a detach() or no_grad(), makes another graph anyway.
    plain = type(tensor) is Tensor
    ops.observe(tensor.detach() if plain else local_part(tensor), slot, tensor.requires_grad)
    if gradient_slot is None or not tensor.requires_grad:
        return None
    if not _taps or not torch.compiler.is_compiling():
        if plain:
            tensor.register_hook(lambda gradient: ops.observe(gradient, gradient_slot))
        else:
            tensor.register_hook(lambda gradient: ops.observe(part_of(gradient), gradient_slot))
        return None
    if part_of(tensor) is not tensor:
        return None  # there is no rule for how a tap is spread over a mesh
    if any(tensor is one for one in input_tensors(given, {})):
        return None  # changed in place: a copy would part what belongs together
    return _replaced(whole, tensor, gradient_slot)


def _replaced(whole: Any, tensor: Tensor, gradient_slot: Tensor) -> Any:
    """`whole` with a tap in the place of `tensor`; None where its kind cannot be rebuilt."""
    if whole is tensor:
        return ops.tap(tensor, gradient_slot)
    named = isinstance(whole, tuple) and hasattr(whole, "_make")
    if not named and type(whole) not in (list, tuple, dict):
        return None
    items = list(whole.values() if isinstance(whole, dict) else whole)
    for index, item in enumerate(items):
        new = _replaced(item, tensor, gradient_slot)
        if new is not None:
            items[index] = new
            if isinstance(whole, dict):
                return dict(zip(whole, items, strict=True))
            return type(whole)(*items) if named else type(whole)(items)
    return None


def _failed(module: nn.Module, error: Exception) -> None:
    """A tensor that cannot be observed (a subclass with a mind of its own): said once, and the module is left alone."""
    slots = slots_of(module)
    if slots is not None:
        slots.output = slots.input = None
    logger.warning("neuraldbg: %s is not observed: %s", type(module).__name__, error)


class _OutputHook(_SharedHook):
    """Forward hook: the module's output and, through it, its gradient."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        slots = module._neuraldbg
        if slots is None or slots.output is None or _beside_training():
            return None
        try:
            tensor = output if type(output) is Tensor else observable(output)
            if tensor is not None and tensor.is_floating_point():
                return _observe_with_gradient(tensor, slots.output, slots.gradient, args, output)
        except Exception as error:
            _failed(module, error)
        return None


class _InputHook(_SharedHook):
    """Forward pre-hook of modules whose input functional code computed."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        slots = module._neuraldbg
        if slots is None or slots.input is None or _beside_training():
            return None
        try:
            tensor, whole = observable(args), args
            if tensor is None:
                tensor, whole = observable(kwargs), kwargs
            if tensor is not None:
                new = _observe_with_gradient(tensor, slots.input, slots.input_gradient, (), whole)
                if new is None or kwargs is None:
                    return new
                return (new, kwargs) if whole is args else (args, new)
        except Exception as error:
            _failed(module, error)
        return None


class _RootHook(_SharedHook):
    """Forward pre-hook of a root module: announces the pass, and has the module graph taken before the first one.

    Inlined into a graph it leaves one operator behind; beside a graph, or in eager mode, it calls the session.
    """

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        slots = module._neuraldbg
        if slots is None or _beside_training():
            return
        if torch.compiler.is_compiling():
            _trace_root(module, args, kwargs)
        else:
            # Asked here: what is called below is kept out of Dynamo's reach, and could no longer tell.
            slots.session.on_root_forward(module, args, kwargs, callable(_frame_callback()))


class _RootOutputHook(_SharedHook):
    """Forward hook of a root module: whose output this is. Inside a graph it does nothing."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        slots = module._neuraldbg
        if slots is not None and not _beside_training():
            slots.session.on_root_output(output)


def _trace_root(module: nn.Module, args: Any, kwargs: Any) -> None:
    from torch._dynamo.comptime import comptime

    comptime(_at_trace_time)
    slots = module._neuraldbg
    if slots.token is None:
        return  # nothing may be left in this graph
    tensors = input_tensors(args, kwargs)
    ops.enter(slots.token, torch.is_grad_enabled(), samples_in(tensors))
    for tensor, slot in zip(tensors, slots.batch, strict=False):
        ops.batch(local_part(tensor), slot)


def _at_trace_time(context: Any) -> None:
    """Runs while Dynamo traces _trace_root, in ordinary Python, before any submodule was traced."""
    from neuraldbg.compiled import plan_at_trace_time

    plan_at_trace_time(context)


output_hook = _OutputHook()
input_hook = _InputHook()
root_hook = _RootHook()
root_output_hook = _RootOutputHook()


def run_beside_graphs() -> None:
    """Keeps Dynamo from compiling the hooks as frames of their own; it still inlines them into graphs."""
    from torch._dynamo.eval_frame import skip_code

    for function in (
        _OutputHook.__call__,
        _InputHook.__call__,
        _RootHook.__call__,
        _RootOutputHook.__call__,
        observable,
        input_tensors,
        samples_in,
        _beside_training,
        _observe_with_gradient,
        _replaced,
        local_part,
        part_of,
    ):
        skip_code(function.__code__)


def slots_of(module: nn.Module) -> Slots | None:
    """What hangs on a module; None for modules that are not observed, and for copies."""
    return module.__dict__.get(ATTRIBUTE)


def attach_slots(module: nn.Module) -> Slots:
    """Hangs empty slots on the module. Past __setattr__, so that no module class can object or register them."""
    slots = Slots()
    module.__dict__[ATTRIBUTE] = slots
    return slots


def detach_slots(module: nn.Module) -> None:
    """Takes the slots off again."""
    module.__dict__.pop(ATTRIBUTE, None)
