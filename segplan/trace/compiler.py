"""PyTorch's compiler, imported only where something of it is used.

Fake tensors and optimizers name `torch._dynamo` to say that they are not to be compiled, and so
import it: 1.5 s of one core, in a process that compiles nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"
_LIGHT = (f"{_NAME}.config",)
"""Parts that can be imported without the rest."""


def postpone() -> None:
    """Have `import torch._dynamo` mean a stand-in, until more is asked of it than it can do.

    For processes that compile nothing. Does nothing where the compiler is imported already.
    """
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.submodule_search_locations is None:
        return
    stand_in = _StandIn(_NAME)
    stand_in.__path__ = list(spec.submodule_search_locations)
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in  # type: ignore[assignment,attr-defined]
    sys.meta_path.insert(0, _FINDER)


class _StandIn(ModuleType):
    """`torch._dynamo`, as far as code goes that only asks not to be compiled."""

    @staticmethod
    def disable(fn: Any = None, *_arguments: Any, **_options: Any) -> Any:
        """The function itself (nothing is compiled); without one, a decorator."""
        return fn if fn is not None else lambda function: function

    @staticmethod
    def graph_break(*_arguments: Any, **_options: Any) -> None:
        """Nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import(), name)


class _Finder(importlib.abc.MetaPathFinder):
    """Imports the whole compiler before a part of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}.") or fullname in _LIGHT:
            return None
        _import()
        return importlib.util.spec_from_loader(
            fullname, _Imported(importlib.import_module(fullname))
        )


class _Imported(importlib.abc.Loader):
    """Loads a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


_FINDER = _Finder()


def _import() -> ModuleType:
    """The compiler itself, from now on in the stand-in's place."""
    if isinstance(sys.modules.get(_NAME), _StandIn):
        sys.meta_path.remove(_FINDER)
        for name in (_NAME, *_LIGHT):
            sys.modules.pop(name, None)
        del torch._dynamo  # type: ignore[attr-defined]
    return importlib.import_module(_NAME)
