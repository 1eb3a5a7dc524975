"""How the matrices of an fp32 package lie: for speed, for a load without work, or in the checkpoint's own files."""

from collections.abc import Mapping
from enum import StrEnum

from paritas.errors import Unsupported
from paritas.quant.recipe import Recipe
from paritas.targets import Target
from paritas.targets.as_stored import AsStoredTarget
from paritas.weights import Float


class Layout(StrEnum):
    """Whose convenience decides.

    ``fast``: the runtime packs each matrix anew when it loads it, and multiplies by that copy. ``load``: matrices are
    used where they lie, mapped from the file: loading takes no time and no memory of its own, each step takes longer.
    ``link``: the package takes the bytes from the checkpoint's own files, and nothing is copied.
    """

    FAST = "fast"
    LOAD = "load"
    LINK = "link"


def target_for(layout: Layout, target: Target, recipe: Recipe) -> Target:
    """The target that writes this layout.

    Raises:
        Unsupported: ``layout-unsupported``.
    """
    if layout is Layout.FAST:
        return target
    if target.name != AsStoredTarget.name or recipe.matrices is not Float.FP32:
        raise Unsupported(
            "layout-unsupported",
            f"matrices lie as the checkpoint has them in fp32 on target ort, not in {recipe.dtype} on {target.name}",
            hint="Leave --layout and --link out, or export with --dtype fp32 --target ort.",
        )
    return AsStoredTarget()


def session_entries(layout: Layout) -> Mapping[str, str]:
    """Entries of ONNX Runtime's session configuration that the layout needs."""
    return {"session.disable_prepacking": "1"} if layout is Layout.LOAD else {}
