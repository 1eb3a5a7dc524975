"""From which depth on an exporter is wrong: it is given the checkpoint's first layers alone, each time more or fewer.

The depth is doubled until the package diverges, and what lies between is halved. Each package is compared on the
sequence that the diagnosis looked at, with transformers on the same truncated checkpoint, in floors measured there.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.diagnose.beginnings import write_beginning
from paritas.diagnose.capture import Captured
from paritas.diagnose.diagnosis import Truncated, Truncation
from paritas.diagnose.run import Diagnosed
from paritas.diagnose.shrink.exporter import Exporter, Refused
from paritas.diagnose.shrink.sizes import Source, open_source
from paritas.errors import Invalid, ParitasError
from paritas.progress import Progress, silent
from paritas.runtime.exact import activations
from paritas.runtime.held import read_held
from paritas.runtime.package import Package, open_package
from paritas.runtime.session import RawSession
from paritas.verify.asking import one_pass, steps
from paritas.verify.compare import Logits, check_shape, differ
from paritas.verify.floor import Noise, floors
from paritas.verify.probes import Sequence as Asked
from paritas.verify.reference import Reference
from paritas.verify.varying import vary


def by_truncation(found: Diagnosed, exporter: Exporter, progress: Progress = silent) -> Diagnosed:
    """The diagnosis, with the depth from which on the exporter's packages diverge.

    Args:
        found: a diagnosis.
        exporter: that made the package.
        progress: told of every depth.
    """
    if found.scene is None:
        return found
    shown = exporter.shown("MODEL", "PACKAGE")
    try:
        source = open_source(found.case.checkpoint)
        _check_fp32(found.case.package)
        tried, first = _Ladder(found.case.checkpoint, source, exporter, found.scene.captured, progress).climb()
        truncation = Truncation(shown, tried, first)
    except ParitasError as refusal:
        truncation = Truncation(shown, (), None, refusal.fact)
    return replace(found, diagnosis=replace(found.diagnosis, truncation=truncation))


def first_bad(depth: int, is_bad: Callable[[int], bool]) -> int | None:
    """The least of 1 ... ``depth`` that is bad, if all behind it are; None if none is. Doubled first, then halved."""
    good, bad = 0, None
    for layers in _doubled(depth):
        if is_bad(layers):
            bad = layers
            break
        good = layers
    while bad is not None and bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if is_bad(middle) else (middle, bad)
    return bad


def _doubled(depth: int) -> Iterator[int]:
    layers = 1
    while layers < depth:
        yield layers
        layers *= 2
    yield depth


class _Ladder:
    """Depths of one checkpoint, each measured once."""

    def __init__(
        self, checkpoint: Checkpoint, source: Source, exporter: Exporter, captured: Captured, progress: Progress
    ) -> None:
        self._checkpoint, self._source, self._exporter, self._progress = checkpoint, source, exporter, progress
        self._sequence = _sequence(captured)
        self._tried: list[Truncated] = []

    def climb(self) -> tuple[tuple[Truncated, ...], int | None]:
        """All that was tried, the shallowest first, and the first depth that diverges."""
        first = first_bad(int(self._source.get("num_hidden_layers")), self._diverges)
        return tuple(sorted(self._tried, key=lambda each: each.layers)), first

    def _diverges(self, layers: int) -> bool:
        self._progress("exporting the first layers again", len(self._tried), len(self._tried) + 1)
        try:
            self._tried.append(Truncated(layers, self._floors(layers)))
        except Refused as refusal:
            self._tried.append(Truncated(layers, None, f"the exporter refuses it: {refusal}"))
        except ParitasError as refusal:
            self._tried.append(Truncated(layers, None, refusal.fact))
        gc.collect()  # transformers' modules are full of circles
        return self._tried[-1].diverges

    def _floors(self, layers: int) -> float:
        """Worst difference on the sequence, in floors.

        Raises:
            Refused: the exporter makes nothing of it.
            ParitasError, Invalid: there is no reference, or the package cannot be compared.
        """
        with tempfile.TemporaryDirectory() as made:
            model, out = Path(made) / "checkpoint", Path(made) / "package"
            write_beginning(self._checkpoint, self._source, layers, model)
            self._exporter.run(model, out)
            package = open_package(out)
            _check_fp32(package)
            wanted, floor = _reference(open_checkpoint(model), self._sequence)
            session = RawSession(package, brief=True)
            sequence = self._sequence
            given = steps(session, sequence) if sequence.stop > sequence.prefill else one_pass(session, sequence.ids)
            check_shape(wanted.shape, given.shape)
            return float((differ(wanted, given)[0] / floor).max())


def _sequence(captured: Captured) -> Asked:
    """The tokens that the diagnosis looked at, put as it put them."""
    ids = tuple(token for one in captured.passes for token in one.ids)
    return Asked("looked-at", ids, len(captured.prefill.ids), len(ids))


def _check_fp32(package: Package) -> None:
    """Raise Invalid unless a package stores and computes in fp32: of others the checkpoint is no reference."""
    proto = package.proto
    if activations(proto) or not read_held(proto, package.model.parent).full:
        raise Invalid("precision-not-exact", "only packages of fp32 are compared with a truncated checkpoint")


def _reference(checkpoint: Checkpoint, sequence: Asked) -> tuple[Logits, NDArray[np.float64]]:
    """Logits ``[positions, vocab]`` and floors ``[positions]``.

    Raises:
        ParitasError, Invalid: as :class:`~paritas.verify.reference.Reference`.
    """
    reference = Reference(checkpoint)

    def asked() -> Logits:
        if sequence.stop > sequence.prefill:
            return reference.steps(sequence.ids, sequence.prefill)
        return reference.one_pass(sequence.ids)

    wanted = asked()
    noise = Noise.of(wanted)
    vary(reference, lambda variant: noise.add(variant, wanted, asked()))
    return wanted, floors({sequence.name: noise})[sequence.name]
