"""All that a diagnosis works on: the package's graph, the checkpoint, the live reference and what it answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paritas.audit.expected import expected
from paritas.audit.frequencies import frequencies_of
from paritas.audit.identity import Identity, identify
from paritas.audit.rope import tables_of
from paritas.audit.sites import Site, sites
from paritas.audit.view import View
from paritas.checkpoint import Checkpoint, Tensor
from paritas.diagnose.integers import with_integers
from paritas.diagnose.live import Live
from paritas.diagnose.slots import Slot, slots
from paritas.progress import Progress, silent
from paritas.runtime.package import Package
from paritas.runtime.ports import Ports, read_ports
from paritas.runtime.quantized import quantized
from paritas.verify.truth import Truths


@dataclass(frozen=True)
class Case:
    """A package beside its reference.

    Attributes:
        package: as it is.
        view: its graph.
        ports: its inputs and outputs.
        sites: its attention operators.
        identity: where its weights come from.
        slots: which tensor belongs where.
        checkpoint: what is the truth.
        tensors: of the checkpoint, under the text model's names.
        live: transformers' model.
        truths: what the reference answered, and its floors.
        shipped: the graph as it lies on disk; ``view`` is the same in fp32 arithmetic.
        faults: stored weight -> why it cannot be the checkpoint's in its bits.
    """

    package: Package
    view: View
    ports: Ports
    sites: Sequence[Site]
    identity: Identity
    slots: tuple[Slot, ...]
    checkpoint: Checkpoint
    tensors: Mapping[str, Tensor]
    live: Live
    truths: Truths
    shipped: View
    faults: Mapping[str, str] = field(default_factory=dict[str, str])

    def site(self, layer: int) -> Site | None:
        """The attention operator of a layer."""
        return next((site for site in self.sites if site.layer == layer), None)


def open_case(
    package: Package, checkpoint: Checkpoint, truths: Truths, model: Any, progress: Progress = silent
) -> Case:
    """Read the package, and lay it beside transformers' ``model``.

    Raises:
        ParitasError, Invalid: the package or the checkpoint cannot be read.
    """
    wanted = expected(checkpoint)
    view = View(package.model, package.model.parent, package.rewritten)
    shipped = view if package.rewritten is None else View(package.model, package.model.parent)
    attending = sites(view)
    rotations = [names for site in attending for names in site.tables()]
    known = tables_of(view, rotations) | {stored.name for stored in frequencies_of(view)}
    packed = quantized(shipped.nodes, shipped.tensors)
    identity = identify(view, wanted.weights, known, progress, packed)
    return Case(
        package=package,
        view=view,
        ports=read_ports(package.model, package.head_size, package.rewritten),
        sites=attending,
        identity=identity,
        slots=with_integers(shipped, packed, slots(view, identity, attending, wanted.weights, packed)),
        checkpoint=wanted.checkpoint,
        tensors=wanted.tensors,
        live=Live(model, {name: tensor.name for name, tensor in wanted.tensors.items()}),
        truths=truths,
        shipped=shipped,
    )
