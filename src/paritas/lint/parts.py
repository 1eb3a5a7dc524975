"""Components of a workflow with their ports: as they are declared, and as their graphs have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from paritas.audit.finding import Finding
from paritas.audit.view import View
from paritas.errors import ParitasError
from paritas.lint.contract import Contract
from paritas.lint.document import Document
from paritas.lint.fault import Values, fault, mapping
from paritas.metadata.decoder import tensor_of
from paritas.runtime.proto import load

Ports = Mapping[str, Contract]


@dataclass(frozen=True)
class Graph:
    """A component's ONNX file: what has to be fed, what it gives; its weights are not opened."""

    path: Path
    proto: onnx.ModelProto

    @cached_property
    def stored(self) -> frozenset[str]:
        """Names of the initializers."""
        return frozenset(tensor.name for tensor in self.proto.graph.initializer)

    @cached_property
    def inputs(self) -> Ports:
        """Without those that have a default."""
        return {v.name: contract_of(v) for v in self.proto.graph.input if v.name not in self.stored}

    @cached_property
    def outputs(self) -> Ports:
        """All of them."""
        return {value.name: contract_of(value) for value in self.proto.graph.output}

    @cached_property
    def view(self) -> View:
        """To walk in."""
        return View(self.path, self.path.parent, self.proto)


@dataclass(frozen=True)
class Part:
    """A component.

    Attributes:
        name: of it.
        values: as written.
        graph: its file, if it is a graph that could be read.
    """

    name: str
    values: Values
    graph: Graph | None

    @property
    def declared(self) -> bool:
        """Whether its ports are written; else they are the graph's."""
        ports = self._ports
        return bool(ports.get("inputs") or ports.get("outputs"))

    @cached_property
    def inputs(self) -> Ports | None:
        """By name; None if nobody says."""
        return self._side("inputs")

    @cached_property
    def outputs(self) -> Ports | None:
        """By name; None if nobody says."""
        return self._side("outputs")

    @property
    def roles(self) -> Mapping[str, str]:
        """Port -> role."""
        return self._ports.get("roles") or {}

    def port_of(self, role: str) -> str | None:
        """The first port of a role."""
        return next((port for port, each in self.roles.items() if each == role), None)

    def optional(self, port: str) -> bool:
        """Whether a declared port may stay unbound."""
        sides = (mapping(self._ports, side) for side in ("inputs", "outputs"))
        return any(mapping(side, port).get("optional", False) for side in sides)

    @property
    def _ports(self) -> Values:
        return self.values.get("ports") or {}

    def _side(self, side: str) -> Ports | None:
        if self.declared:
            return {name: Contract.of(each) for name, each in mapping(self._ports, side).items()}
        if self.graph is None:
            return None
        return self.graph.inputs if side == "inputs" else self.graph.outputs


def contract_of(value: onnx.ValueInfoProto) -> Contract:
    """An input or output of a graph; which size is the batch, a graph does not say."""
    tensor = tensor_of(value)
    return Contract(tensor.dtype, len(tensor.shape), tensor.shape, None, "unsaid")


def read_parts(document: Document) -> tuple[dict[str, Part], list[Finding]]:
    """Every component, and what is wrong with their files."""
    parts: dict[str, Part] = {}
    found: list[Finding] = []
    for name, values in document.part("components").items():
        graph = None
        artifact = values["implementation"].get("artifact")
        where = document.at("pipeline", "workflow", "components", name, "implementation", "artifact")
        if artifact is not None:
            why = unreachable(document.folder, artifact)
            if why is not None:
                found.append(fault("metadata-artifact", where, f"{artifact!r} {why}", "Name a file of the package."))
            elif values["implementation"]["kind"] == "onnx":
                graph = _graph(document.folder / artifact, where, found)
        parts[name] = Part(name, values, graph)
    return parts, found


def unreachable(folder: Path, name: str) -> str | None:
    """Why a name is no file of the package; None if it is one."""
    path = folder / name
    if not name or not path.resolve().is_relative_to(folder.resolve()):
        return "lies outside of the package"
    return None if path.is_file() else "is no file of the package"


def _graph(path: Path, where: str, found: list[Finding]) -> Graph | None:
    try:
        return Graph(path, load(path))
    except ParitasError as error:
        found.append(fault("metadata-artifact", where, f"{path.name}: {error.fact}", "Copy or export it again."))
        return None
