"""Makes the package of a mutant or a control: exported while broken, or taken from another exporter; then edited."""

from functools import cache
from pathlib import Path

import pytest

import tiny
from mutants.mutant import Control, Mutant
from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.targets import TARGETS
from rounding import rounded

PROVIDERS = {"fp16": "cuda", "bf16": "cuda"}
"""For whom a dtype is written that the CPU has few kernels for."""

PEERS = Path(__file__).parent.parent / "data" / "peers"


@cache
def checkpoint(name: str, root: Path) -> Path:
    """A tiny checkpoint, written below ``root`` if it is not there, or one that is kept with peers' packages."""
    if name.startswith("kept-"):
        return PEERS / "checkpoints" / name
    folder = root / "checkpoints" / name
    if not (folder / "config.json").exists():
        aside = folder.with_name(f"{name}.part")
        tiny.every()[name](aside)
        aside.rename(folder)
    return folder


def make(one: Mutant | Control, out: Path, root: Path) -> Path:
    """Make the package in ``out``, which is returned; or return the peer's own folder, if nothing is changed.

    Args:
        one: what to make.
        out: a folder that is not there yet.
        root: where tiny checkpoints are.
    """
    source = _source(one, out, root)
    steps = [step for step in (one.rounded, one.graph) if step is not None]
    if not steps:
        return source
    first, *rest = steps
    edited = out.with_name(f"{out.name}.edited")
    return rounded(source, edited, first, *rest)


def _source(one: Mutant | Control, out: Path, root: Path) -> Path:
    if one.source not in TARGETS:
        return PEERS / one.source / one.checkpoint
    dtype = one.dtype if isinstance(one, Control) else "fp32"
    options = Options(
        drop=one.drop if isinstance(one, Mutant) else (),
        text_only="multimodal" in one.checkpoint,
        recipe=recipe(dtype),
        provider=PROVIDERS.get(dtype, "cpu"),
    )
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(one, Mutant) and one.fault is not None:
            one.fault(patch)
        export(checkpoint(one.checkpoint, root), out, TARGETS[one.source], options)
    return out
