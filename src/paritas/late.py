"""Modules of others that we import through what we need, and that few commands use: read when they are first used.

onnx_ir imports sympy for shapes with formulas in them, of which an export has none. That would be a third of all that
an export of a small model imports, and 30 MB.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_LATE = ("sympy", "onnx_ir._symbolic_shapes")  # the second touches the first when it is read


class _Late:
    """A finder of :data:`_LATE` before all others. A name that is no longer imported costs nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name in _LATE else None
        if found is not None and found.loader is not None:
            found.loader = importlib.util.LazyLoader(found.loader)
        return found


def import_late() -> None:
    """For a program to call, before it imports anything else. A library does not change how others import."""
    sys.meta_path.insert(0, _Late())
