"""External data of a graph: which files it names, refused or measured before a runtime opens any of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from paritas.errors import ParitasError
from paritas.runtime.proto import nodes

_KEYS = frozenset({"location", "offset", "length", "checksum"})
"""Of external data, as ONNX defines them."""
_PREPACKED = "prepacked_"
"""How keys begin that ONNX Runtime adds when it stores weights in a kernel's own layout."""


@dataclass(frozen=True)
class Extent:
    """The bytes ``[start, stop)`` of ``file`` that hold the tensor ``name``."""

    name: str
    file: Path
    start: int
    stop: int


def inside(folder: Path, location: str) -> Path:
    """The path of ``location`` in ``folder``. Nothing is opened.

    Raises:
        ParitasError: ``package-data-hostile`` if the location is absolute or leaves the folder, by its
            spelling or through a symbolic link. Links into the ``blobs`` of the Hub cache around the folder
            are the Hub's own way of storing a file, and allowed.
    """
    spelled = PurePosixPath(location.replace("\\", "/"))
    absolute = spelled.is_absolute() or bool(PureWindowsPath(location).drive)
    path = folder / spelled
    real = Path() if absolute else path.resolve()
    if absolute or ".." in spelled.parts or not any(real.is_relative_to(r) for r in _roots(folder)):
        raise ParitasError(
            "package-data-hostile",
            f"a file of the package is said to lie at {location!r}, outside of its folder",
            place=str(folder),
            hint="Do not run this package; ask its publisher for one whose files lie side by side.",
        )
    return path


def _roots(folder: Path) -> Iterator[Path]:
    yield folder.resolve()
    for parent in folder.absolute().parents:
        if parent.name == "snapshots":
            yield (parent.parent / "blobs").resolve()


def extents(proto: onnx.ModelProto, folder: Path) -> Iterator[Extent]:
    """Where each external tensor of the graph lies.

    Raises:
        ParitasError: ``package-data-hostile`` for a place outside of the folder or an offset that is no
            number or a key that ONNX does not know, ``package-data-truncated`` if the length given is less than
            the tensor's shape needs, ``package-model-broken`` for a type that does not exist.
    """
    for tensor in _tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = _entries(tensor, folder)
        file = inside(folder, entries.get("location", ""))
        needed = _bytes(tensor, file)
        start = _number(entries.get("offset", "0"), tensor.name, file)
        length = _number(entries.get("length", str(needed)), tensor.name, file)
        if length < needed:
            raise _truncated(f"{tensor.name} has {length} bytes, its shape needs {needed}", file)
        yield Extent(tensor.name, file, start, start + length)


def check(proto: onnx.ModelProto, folder: Path) -> tuple[Path, ...]:
    """The external data files of the graph, all of them there and long enough, without opening one.

    Raises:
        ParitasError: ``package-data-missing``, ``package-data-truncated``, ``package-data-hostile``.
    """
    ends: dict[Path, Extent] = {}
    for extent in extents(proto, folder):
        last = ends.get(extent.file)
        if last is None or extent.stop > last.stop:
            ends[extent.file] = extent
    for file, last in ends.items():
        if not file.is_file():
            raise ParitasError(
                "package-data-missing",
                f"the weights of {last.name} are not there",
                place=str(file),
                hint="Copy the data file next to the graph, under the name the graph knows it by.",
            )
        size = file.stat().st_size
        if size < last.stop:
            raise _truncated(f"{size} bytes, but {last.name} ends at {last.stop}", file)
    return tuple(ends)


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model: initializers, also of subgraphs, and attributes of nodes."""
    yield from _initializers(proto.graph)
    for node in nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _initializers(attribute.g)
            for graph in attribute.graphs:
                yield from _initializers(graph)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _entries(tensor: onnx.TensorProto, folder: Path) -> dict[str, str]:
    """What the tensor says of its data, each key once and none that ONNX does not know: readers differ on those."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    strange = sorted(key for key in entries.keys() - _KEYS if not key.startswith(_PREPACKED))
    if strange or len(entries) != len(tensor.external_data):
        raise ParitasError(
            "package-data-hostile",
            f"the data of {tensor.name} has {f'unknown keys {strange}' if strange else 'a key twice'}",
            place=str(folder),
            hint="Do not run this package; ask its publisher for one that ONNX's own checker accepts.",
        )
    return entries


def _bytes(tensor: onnx.TensorProto, file: Path) -> int:
    """What the tensor's type and shape need; sub-byte types are packed."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise ParitasError(
            "package-model-broken",
            f"{tensor.name} has type {tensor.data_type}, which has no size",
            place=str(file),
            hint="Export the package again.",
        ) from error
    return -(-bits * math.prod(tensor.dims) // 8)


def _number(text: str, name: str, file: Path) -> int:
    if not text.isdecimal():
        raise ParitasError(
            "package-data-hostile",
            f"offset or length of {name} is {text!r}, no number of bytes",
            place=str(file),
            hint="Do not run this package; export it again.",
        )
    return int(text)


def _truncated(fact: str, file: Path) -> ParitasError:
    return ParitasError(
        "package-data-truncated",
        fact,
        place=str(file),
        hint="Copy or download the data file again, then compare sizes.",
    )
