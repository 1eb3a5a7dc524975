"""A package whose weights are the checkpoint's own bytes: hard links to its files, and Casts where those are narrow.

ONNX Runtime refuses external data outside of the package's folder, also through a symbolic link. A hard link is a file
of the folder like any other: it stays when the checkpoint is deleted.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from paritas.checkpoint import Extent
from paritas.errors import ParitasError
from paritas.graph.builder import Graph
from paritas.weights import Float, Weight

_TYPES = {"F32": ir.DataType.FLOAT, "BF16": ir.DataType.BFLOAT16, "F16": ir.DataType.FLOAT16}
_EXPONENTS = {"F32": (np.uint32, 0x7F800000), "BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00)}
_READ = 8 << 20  # so much that Python, which other threads may be busy in, is seldom asked


@dataclass(frozen=True)
class Linked:
    """A file of the package that is also the checkpoint's.

    Attributes:
        name: in the package.
        checkpoint: name in the checkpoint.
        bytes: of the file.
        sha256: of the file.
        initializers: that lie in it.
    """

    name: str
    checkpoint: str
    bytes: int
    sha256: str
    initializers: tuple[str, ...]


def usable(weight: Weight) -> Extent | None:
    """Where the weight's bytes lie in a file as a graph can take them; None if they have to be written."""
    extent = weight.extent
    return extent if extent is not None and weight.storage is Float.FP32 and extent.dtype in _TYPES else None


def link_weights(graph: Graph, folder: Path) -> tuple[Linked, ...]:
    """Let the graph take from the checkpoint's files whatever it can; those weights need not be written.

    Args:
        graph: its initializers are changed.
        folder: the package's; it gets a hard link for each file.

    Raises:
        ParitasError: ``link-impossible`` if the checkpoint's files cannot be linked; ``link-nothing`` if nothing in
            them can be taken as it is; ``weight-not-finite``.
    """
    taken = {name: extent for name, weight in graph.weights.items() if (extent := usable(weight)) is not None}
    files = list(dict.fromkeys(extent.path for extent in taken.values()))
    if not files:
        raise ParitasError(
            "link-nothing",
            "no weight of this package is stored in the checkpoint as a graph can take it",
            hint="Leave --link out: only matrices of safetensors files in bf16, fp16 or fp32 can be linked.",
        )
    names = {path: _hard_link(path, folder, number) for number, path in enumerate(files)}
    with ThreadPoolExecutor(max_workers=1) as other:  # sums of files while the numbers are looked at
        sums = {path: other.submit(_sha256, path) for path in files}
        for name, extent in taken.items():
            _check_finite(name, extent, graph.weights[name].sources)
            _point(graph, name, extent, names[extent.path], folder)
        return tuple(
            Linked(
                names[path],
                path.name,
                path.stat().st_size,
                sums[path].result(),
                tuple(name for name, extent in taken.items() if extent.path == path),
            )
            for path in files
        )


def record(linked: Iterable[Linked]) -> dict[str, Mapping[str, object]]:
    """As the evidence has it: by name in the package."""
    return {each.name: {key: value for key, value in vars(each).items() if key != "name"} for each in linked}


def _hard_link(path: Path, folder: Path, number: int) -> str:
    name = f"checkpoint-{number + 1}.onnx.data"
    try:
        os.link(path.resolve(), folder / name)
    except OSError as error:
        raise ParitasError(
            "link-impossible",
            f"the file cannot be linked into the package: {error.strerror}",
            place=str(path),
            hint="A hard link needs a file system that has them, and both on the same one: choose an output there, or "
            "leave --link out. Other links would dangle, and ONNX Runtime does not follow them.",
        ) from None
    return name


def _point(graph: Graph, name: str, extent: Extent, file: str, folder: Path) -> None:
    """Let the initializer lie in the file; where it is narrow, a Cast, which runtimes do once, gives what was there."""
    value, weight, dtype = graph.ir.initializers[name], graph.weights[name], _TYPES[extent.dtype]
    length = weight.size * dtype.itemsize
    value.const_value = ir.ExternalTensor(
        file, extent.offset, int(length), dtype, shape=ir.Shape(weight.shape), name=name, base_dir=str(folder)
    )
    if dtype is ir.DataType.FLOAT:
        return
    value.type = ir.TensorType(dtype)
    cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, name=f"{name}.widened")
    (wide,) = cast.outputs
    wide.name, wide.type, wide.shape = f"{name}.widened", ir.TensorType(ir.DataType.FLOAT), ir.Shape(weight.shape)
    for user, index in [use for use in value.uses() if use.node is not cast]:
        user.replace_input_with(index, wide)
    graph.ir.insert_before(graph.ir[0], cast)


def _check_finite(name: str, extent: Extent, sources: tuple[str, ...]) -> None:
    unsigned, exponent = _EXPONENTS[extent.dtype]
    for piece in _pieces(extent.path, extent.offset, extent.length):
        bits = np.frombuffer(piece, unsigned)
        if bad := int(np.count_nonzero((bits & unsigned(exponent)) == exponent)):
            raise ParitasError(
                "weight-not-finite",
                f"{bad:,} NaN or Inf value{'s' if bad > 1 else ''} in {', '.join(sources)}",
                place=name,
                hint="The checkpoint itself is broken (a failed merge or training run): no export of it can be right.",
            )


def _pieces(path: Path, offset: int, length: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while length and (piece := file.read(min(length, _READ))):
            length -= len(piece)
            yield piece


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path, 0, path.stat().st_size):
        digest.update(piece)
    return digest.hexdigest()
