"""The weights of a mixture's experts as the graph holds them: a matrix an expert, and the whole written back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.experts import InTurn, as_gate_and_up
from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit
from paritas.diagnose.extract import taken_by
from paritas.diagnose.mixture_regions import Region
from paritas.diagnose.mixtures import PARTS, Mixture

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Stacked:
    """An initializer with a part for each expert.

    Attributes:
        name, shape: of the initializer.
        parts: what lies in each expert's part, one after the other: ``gate_proj.weight``, ``up_proj.weight``.
        turned: whether a matrix lies transposed.
        in_turn: whether the rows of the two parts alternate.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    turned: bool
    in_turn: bool

    def read(self, case: Case) -> dict[tuple[int, str], Rows]:
        """(expert, part) -> its values as a checkpoint has them."""
        values = np.asarray(case.view.tensors[self.name].array(), np.float32)
        found: dict[tuple[int, str], Rows] = {}
        for expert, own in enumerate(values):
            whole = own.T if self.turned else own
            for part, rows in zip(self.parts, self._split(whole), strict=True):
                found[expert, part] = rows
        return found

    def _split(self, whole: Rows) -> Sequence[Rows]:
        count = len(self.parts)
        return [whole[at::count] for at in range(count)] if self.in_turn else np.split(whole, count)

    def write(self, edit: Edit, held: Mapping[tuple[int, str], Rows], what: str) -> None:
        """All of it from ``held``."""
        stored = edit.values(self.name)
        whole = np.array(stored, np.float32)
        for expert in range(len(whole)):
            rows = [held[expert, part] for part in self.parts]
            joined = np.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:]) if self.in_turn else np.concatenate(rows)
            whole[expert] = (joined.T if self.turned else joined).reshape(whole[expert].shape)
        edit.set_initializer(self.name, whole, what)


def stacked(case: Case, mixture: Mixture, region: Region) -> Iterator[Stacked]:
    """Every initializer of a mixture that holds a part for each expert, and of which it is known what."""
    records = {record.name: record for record in case.identity.initializers}
    names = dict.fromkeys(name for node in region.nodes for name in taken_by(node) if name in case.view.tensors)
    for name in names:
        stored = case.view.tensors[name]
        if len(stored.shape) not in (2, 3) or stored.shape[0] != mixture.count or not stored.is_float:
            continue
        in_turn = isinstance(as_gate_and_up(stored, case.view), InTurn)
        tensors = records[name].tensors if name in records else ()
        told = _told(stored.shape[1:], mixture, name, tensors, in_turn=in_turn)
        if told is not None:
            yield Stacked(name, stored.shape, *told, in_turn)


def _told(
    shape: tuple[int, ...], mixture: Mixture, name: str, tensors: Sequence[str], *, in_turn: bool
) -> tuple[tuple[str, ...], bool] | None:
    kind = "weight" if len(shape) == 2 else "bias"
    sizes = {part: mixture.held[0, f"{part}.{kind}"].shape for part in PARTS if (0, f"{part}.{kind}") in mixture.held}
    if "gate_proj" not in sizes:
        return None
    both = (2 * sizes["gate_proj"][0], *sizes["gate_proj"][1:])
    packed = (f"gate_proj.{kind}", f"up_proj.{kind}")
    if shape == both or shape[::-1] == both:
        first = next((t.rpartition(".experts.")[2].partition(".")[2] for t in tensors), packed[0])
        order = packed if in_turn or first == packed[0] else packed[::-1]
        return order, shape != both
    fits = [part for part, size in sizes.items() if size in (shape, shape[::-1])]
    held = [part for part in fits if sum(f".{part}." in tensor for tensor in tensors) > len(tensors) / 2]
    named = [part for part in fits if part in name]
    likely = held or named or fits
    if len(likely) != 1:
        return None
    return (f"{likely[0]}.{kind}",), sizes[likely[0]] != shape
