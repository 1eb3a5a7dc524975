"""Activations that look at a token's whole row: only gates that stand out of it go through (activation sparsity)."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate
from paritas.diagnose.activations import applied, word_of
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.parameters.activation import LINE, WRITTEN, place_of
from paritas.diagnose.subgraphs import mean_of_last
from paritas.verify.loading import require_torch

Rows = NDArray[np.float32]
_TOKENS = 16
_CLOSE = 1e-5


@dataclass(frozen=True)
class _Gates:
    """The reference's way from a layer's gates to what its up projection is multiplied by.

    Attributes:
        gate, function: transformers' modules.
        rows: gates that were given, ``[tokens, width]``.
        passed: what of them goes into the activation.
        made: what comes out of it.
    """

    gate: Any
    function: Any
    rows: Rows
    passed: Rows
    made: Rows

    def multiple(self) -> float | None:
        """Of a row's own standard deviation above its mean, where the gates are cut off; None if they are not so."""
        mean, deviation = self.rows.mean(1, dtype=np.float64), self.rows.std(1, dtype=np.float64)
        token, place = np.nonzero(self.passed)
        cut = self.rows[token, place].astype(np.float64) - self.passed[token, place]
        if not token.size:
            return None
        multiple = float(((cut - mean[token]) / deviation[token]).mean())
        least = (mean + multiple * deviation)[:, None]
        return multiple if np.abs(np.maximum(self.rows - least, 0) - self.passed).max() <= _CLOSE else None

    @property
    def is_sparse(self) -> bool:
        """Whether a gate's row has a say in what becomes of it."""
        return not np.array_equal(self.rows, self.passed)


def sparsity_differences(case: Case) -> Iterator[Difference]:
    """Every MLP whose gates are cut off otherwise than in the reference, or in one of the two alone."""
    for layer in range(len(case.live.layers)):
        place, found = place_of(case, layer), _asked(case, layer)
        if place is None or found is None:
            continue
        made = _evaluated(case, place, found.rows)
        halves = _evaluated(case, place, found.rows[:, : found.rows.shape[1] // 2])
        if made is None or halves is None or _same(made, found.made):
            continue
        is_sparse = not _same(made[:, : halves.shape[1]], halves)
        if is_sparse or found.is_sparse:
            yield _difference(case, layer, place, found, is_sparse)


def _same(one: Rows, other: Rows) -> bool:
    return bool(np.abs(one - other).max() <= _CLOSE)


def _evaluated(case: Case, place: tuple[str, str], rows: Rows) -> Rows | None:
    start, end = place
    made = evaluate(case.view, [end], {start: rows[None]})
    return made[0][0] if made is not None and made[0].shape == (1, *rows.shape) else None


def _asked(case: Case, layer: int) -> _Gates | None:
    """The MLP alone, its gates ours; None if it has none, or no activation of its own."""
    torch, _ = require_torch()
    path = f"model.layers.{layer}.mlp"
    mlp, gate = case.live.module(path), case.live.module(f"{path}.gate_proj")
    function = getattr(mlp, "act_fn", None)
    if mlp is None or gate is None or function is None or not hasattr(gate, "out_features"):
        return None
    rows = np.random.default_rng(3).normal(0, 1, (_TOKENS, gate.out_features)).astype(np.float32)
    seen: list[tuple[Any, Any]] = []
    with (
        case.live.changing(gate, lambda _: torch.from_numpy(rows)[None]),
        case.live.calling(function, lambda _, args, out: seen.append((args[0], out))),
        torch.inference_mode(),
    ):
        mlp(torch.zeros(1, _TOKENS, gate.in_features))
    if len(seen) != 1 or seen[0][0].numel() != rows.size:
        return None
    passed, made = (each.float().numpy().reshape(rows.shape) for each in seen[0])
    return _Gates(gate, function, rows, passed, made)


def _difference(case: Case, layer: int, place: tuple[str, str], found: _Gates, is_sparse: bool) -> Difference:
    wanted = found.multiple() if found.is_sparse else None
    word = word_of(LINE, applied(found.function, LINE))
    able = word in WRITTEN and (wanted is not None or not found.is_sparse)

    def repairs(edit: Edit) -> None:
        start, end = place
        gates = start if wanted is None else _cut(edit, start, wanted)
        edit.redirect(end, WRITTEN[str(word)](edit, gates), f"activation {end}: of gates {_words(wanted)}")

    right = _words(wanted) if wanted is not None or not found.is_sparse else "cut off in a way of its own"
    got = "cut off at another height" if found.is_sparse else "cut off"
    return Difference(
        parameter="activation-sparsity",
        where=f"model.layers.{layer}.mlp",
        layer=layer,
        package=is_sparse or None,
        reference=wanted if found.is_sparse else None,
        fact=f"gates are {got if is_sparse else 'not cut off'}; in the reference {right}",
        breaks=lambda: _breaking(case, place, found),
        repairs=repairs if able else None,
        facts={"origin": f"{is_sparse}, {found.is_sparse}"},
    )


def _words(multiple: float | None) -> str:
    return "not cut off" if multiple is None else f"cut off {multiple:.6g} standard deviations above a token's mean"


def _cut(edit: Edit, gates: str, multiple: float) -> str:
    mean = mean_of_last(edit, gates)
    apart = edit.insert_node("Sub", [gates, mean])
    deviation = edit.insert_node("Sqrt", [mean_of_last(edit, edit.insert_node("Mul", [apart, apart]))])
    number = edit.add_initializer("sparsity", np.array(multiple, np.float32))
    least = edit.insert_node("Add", [mean, edit.insert_node("Mul", [deviation, number])])
    return edit.insert_node("Relu", [edit.insert_node("Sub", [gates, least])])


@contextmanager
def _breaking(case: Case, place: tuple[str, str], found: _Gates) -> Generator[None]:
    """Within, the reference's activation gives what the graph's makes of the same gates."""
    torch, _ = require_torch()
    given: list[Any] = []

    def keep(module: Any, args: Any, out: Any) -> None:
        given[:] = [out]

    def change(out: Any) -> Any:
        gates = given[0].numpy()
        made = _evaluated(case, place, gates.reshape(-1, gates.shape[-1]))
        assert made is not None
        return torch.from_numpy(made.reshape(gates.shape))

    with case.live.calling(found.gate, keep), case.live.changing(found.function, change):
        yield
