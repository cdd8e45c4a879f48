"""Taps on functions of torch that stay the objects that they are.

Replacing `torch.nn.functional.mse_loss` by another function is seen by the user's program: tables of
`__torch_function__` overrides look torch's own function up, pickle wants it under its name, torch.jit.script compiles
it from its source. So the function stays, and what it runs is exchanged: its code. What was there goes on under another
object with the same globals and defaults.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

# By the name of the function that is tapped: its code can refer to it by its globals alone, which are torch's.
_called: dict[str, Callable[..., Any]] = {}


def _template(*args: Any, **kwargs: Any) -> Any:
    from neuraldbg.functional_losses import _called

    return _called["name of the function"](args, kwargs)


class TappedFunction:
    """A function whose code was exchanged; `restore` undoes it."""

    def __init__(self, function: types.FunctionType, handler: Callable[..., Any]) -> None:
        self._function = function
        self._code = function.__code__
        self._defaults = function.__defaults__, function.__kwdefaults__
        original = types.FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        original.__annotations__ = function.__annotations__
        _called[function.__name__] = lambda args, kwargs: handler(original, args, kwargs)
        code = _template.__code__
        constants = tuple(function.__name__ if one == "name of the function" else one for one in code.co_consts)
        self._tap = code.replace(co_consts=constants, co_name=function.__name__)
        function.__wrapped__ = original  # type: ignore[attr-defined]  # whose signature and source are asked for
        function.__defaults__ = function.__kwdefaults__ = None  # type: ignore[assignment]
        function.__code__ = self._tap

    def restore(self) -> None:
        """Gives the function what it had, unless somebody has exchanged it once more."""
        function = self._function
        if function.__code__ is self._tap:
            function.__code__ = self._code
            function.__defaults__, function.__kwdefaults__ = self._defaults
            del function.__wrapped__  # type: ignore[attr-defined]


def tap(function: Any, handler: Callable[..., Any]) -> TappedFunction | None:
    """Has handler(original, args, kwargs) called in the place of a function, of which it is to return the result.

    None where the function is no plain one: another package has put its own in the place.
    """
    plain = isinstance(function, types.FunctionType) and not function.__code__.co_freevars
    if not plain or hasattr(function, "__wrapped__"):
        return None
    return TappedFunction(function, handler)
