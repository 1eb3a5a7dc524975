"""Writes a repaired package beside the old one: its graph edited, everything else copied, the whole verified first."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit
from paritas.errors import Invalid, ParitasError
from paritas.package.staging import check_output, publish, staging
from paritas.progress import Progress, silent
from paritas.runtime.external import Extent, extents
from paritas.runtime.package import Package, open_package
from paritas.runtime.session import RawSession
from paritas.verify.evidence import Evidence
from paritas.verify.provenance import version
from paritas.verify.rounded import truths_for
from paritas.verify.run import judge
from paritas.verify.truth import Truths
from paritas.verify.verdict import Verdict

NOTE = "REPAIRED.md"
_LEFT_OUT = ("evidence", "repro", NOTE)
"""What spoke of the old package."""

_INLINE = 1 << 20
"""Bytes of a tensor that may lie in the graph's own file."""


@dataclass(frozen=True)
class Repaired:
    """A repaired package.

    Attributes:
        out: its folder.
        lines: what was changed.
        evidence: of its verification.
    """

    out: Path
    lines: tuple[str, ...]
    evidence: Evidence


def write(case: Case, edit: Edit, out: Path, *, force: bool = False, progress: Progress = silent) -> Repaired:
    """Write the package with ``edit`` made to it to ``out``, if it is proven then; the package itself stays as it is.

    Args:
        case: the package and its reference.
        edit: what is changed.
        out: a folder that gets its name when all is done.
        force: whether a package that is there is replaced.
        progress: told of the verification.

    Raises:
        ParitasError: ``output-exists``, ``output-not-a-package``, ``output-unwritable``, ``disk-full``;
            ``repair-not-proven`` if the repaired package still diverges, or does not run as the old one does.
    """
    check_output(out, force=force)
    with staging(out) as folder:
        model = _copy(case.package, folder)
        _write(edit, model, case.package)
        (folder / NOTE).write_text(_note(case, edit), encoding="utf-8")
        repaired = open_package(folder)
        _check_that_it_runs(case, repaired, out)
        evidence = judge(repaired, _truths(case, repaired, progress), ("onnxruntime",), progress)
        if evidence.verdict is not Verdict.PROVEN:
            worst = f"{evidence.worst_floors or float('nan'):,.1f} floors from the checkpoint"
            raise _not_proven(f"repaired, it is still {evidence.verdict}, {worst}", out)
        publish(folder, out)
    return Repaired(out, tuple(edit.lines), evidence)


def _truths(case: Case, repaired: Package, progress: Progress) -> Truths:
    """What the repaired package is held against: of less than fp32, with the weights that it stores by now."""
    if case.truths.rounded is None:
        return case.truths
    return truths_for(repaired, case.checkpoint, progress, cache=False, power=False)


def _check_that_it_runs(case: Case, repaired: Package, out: Path) -> None:
    """Of less than fp32, a repair is proved in fp32 arithmetic: the types of the package itself may not admit it."""
    if case.package.rewritten is None or not _runs(replace(case.package, rewritten=None)):
        return
    if not _runs(repaired):
        raise _not_proven("repaired, it is right in fp32 arithmetic, and does not run in the types of the package", out)


def _runs(package: Package) -> bool:
    try:
        RawSession(package).forward(np.array([[0, 1]], np.int64))
    except Invalid:
        return False
    return True


def _not_proven(fact: str, out: Path) -> ParitasError:
    return ParitasError(
        "repair-not-proven",
        fact,
        place=str(out),
        hint="Nothing was written. The diagnosis says what is proved and what is not.",
    )


def _copy(package: Package, folder: Path) -> Path:
    """Everything but what spoke of the old package and the graph; where the graph goes."""
    place = package.model.relative_to(package.folder)
    for path in sorted(package.folder.iterdir()):
        if path.name in _LEFT_OUT:
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        elif path != package.model:
            shutil.copyfile(path, folder / path.name)
    return folder / place


def _write(edit: Edit, model: Path, package: Package) -> None:
    """The graph; a tensor of a data file goes back to its place there, a new large one into a file of its own."""
    proto = onnx.ModelProto()
    proto.CopyFrom(edit.model())
    places = {extent.name: extent for extent in extents(edit.source, package.model.parent)}
    data = model.with_name(f"{model.name}.repaired.data")
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or not tensor.raw_data:
            continue
        if tensor.name in places and len(tensor.raw_data) == places[tensor.name].stop - places[tensor.name].start:
            _put_back(tensor, places, model.parent)
        elif len(tensor.raw_data) > _INLINE:
            _append(tensor, data)
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(proto.SerializeToString())


def _put_back(tensor: onnx.TensorProto, places: Mapping[str, Extent], folder: Path) -> None:
    extent = places[tensor.name]
    with (folder / extent.file.name).open("r+b") as file:
        file.seek(extent.start)
        file.write(tensor.raw_data)
    _refer(tensor, extent.file.name, extent.start, extent.stop - extent.start)


def _append(tensor: onnx.TensorProto, data: Path) -> None:
    with data.open("ab") as file:
        start = file.tell()
        file.write(tensor.raw_data)
    _refer(tensor, data.name, start, len(tensor.raw_data))


def _refer(tensor: onnx.TensorProto, location: str, start: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(start)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _note(case: Case, edit: Edit) -> str:
    lines = "\n".join(f"- {line}" for line in edit.lines)
    return (
        f"# Repaired package\n\nMade by Paritas {version('paritas')} from the package `{case.package.folder.name}`, so "
        f"that it computes what the checkpoint `{case.checkpoint.name}` computes. What was changed:\n\n{lines}\n"
    )
