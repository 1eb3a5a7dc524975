"""Runs the reference once over all sequences: its logits, and the floor of every position."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid
from paritas.progress import Progress, silent
from paritas.verify.compare import Logits
from paritas.verify.evidence import CheckpointRecord
from paritas.verify.floor import FP64, SDPA, STEPS, Noise, floors
from paritas.verify.probes import NEW_TOKENS, Plan, Probe, Sequence, make_plan
from paritas.verify.provenance import checkpoint_record
from paritas.verify.reference import Facts, Reference
from paritas.verify.text import Source, ids_source


@dataclass(frozen=True)
class Truth:
    """What the reference says of one sequence.

    Attributes:
        logits: ``[positions, vocab]``, fp32, eager, one pass.
        floors: ``[positions]``.
        variants: name -> differences ``[positions]``, NaN where the variant does not reach.
    """

    sequence: Sequence
    logits: Logits
    floors: NDArray[np.float64]
    variants: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Truths:
    """What the reference says of a checkpoint: all that a package is held against.

    Attributes:
        checkpoint: its name and hash, and transformers' class.
        facts: what the reference's configuration says.
        source: where the token ids come from.
        probes: what to ask a package.
        by_name: a truth for each sequence.
        refused: variant -> why the reference cannot be asked that way.
        unused: tensors of the checkpoint that the reference does not compute with.
    """

    checkpoint: CheckpointRecord
    facts: Facts
    source: Source
    probes: tuple[Probe, ...]
    by_name: Mapping[str, Truth]
    refused: Mapping[str, str]
    unused: tuple[str, ...] = ()


def find_truths(checkpoint: Checkpoint, progress: Progress = silent) -> Truths:
    """Load the reference, let it answer, and let it go: nothing of it stays in memory but logits.

    Raises:
        ParitasError, Invalid: as :class:`~paritas.verify.reference.Reference` and
            :func:`~paritas.verify.text.ids_source`; ``reference-not-finite``.
    """
    progress("loading the reference", 0, 1)
    reference = Reference(checkpoint)
    source = ids_source(checkpoint, reference.facts.vocab)
    plan = make_plan(reference.facts, source)
    run = _Run(reference, progress, 4 * (len(plan.sequences) + len(plan.prompts)))
    run.answer(plan)
    run.vary()
    found = floors(run.noise)
    truths = Truths(
        checkpoint=checkpoint_record(checkpoint, reference.class_name),
        facts=reference.facts,
        source=source,
        probes=plan.probes,
        by_name={
            name: Truth(sequence, run.logits[name], found[name], run.noise[name].variants)
            for name, sequence in run.sequences.items()
        },
        refused=run.refused,
        unused=reference.unused,
    )
    del run, reference
    gc.collect()  # transformers' modules are full of circles, and the next thing to be loaded is the package
    return truths


class _Run:
    """The reference at work."""

    def __init__(self, reference: Reference, progress: Progress, total: int) -> None:
        self.reference, self.progress, self.total, self.done = reference, progress, total, 0
        self.sequences: dict[str, Sequence] = {}
        self.logits: dict[str, Logits] = {}
        self.noise: dict[str, Noise] = {}
        self.refused: dict[str, str] = {}

    def answer(self, plan: Plan) -> None:
        """One pass over everything, and step by step over what is decoded."""
        for sequence in plan.sequences:
            self._hold(sequence)
            if sequence.stop > sequence.prefill:
                self._add(
                    STEPS,
                    sequence.name,
                    self.reference.steps(sequence.ids[: sequence.stop], sequence.prefill),
                )
            self._tick("reference, step by step")
        for name, prompt in plan.prompts:
            tokens, steps = self.reference.greedy(prompt, NEW_TOKENS)
            ids = (*prompt, *tokens[:-1])
            self._hold(Sequence(name, ids, len(prompt), len(ids), tokens, len(prompt)))
            self._add(STEPS, name, steps)
            self._tick("reference, step by step")

    def vary(self) -> None:
        """The two variants that change the arithmetic. fp64 comes last: it cannot be undone."""
        try:
            with self.reference.sdpa():
                self._pass_all(SDPA)
        except Invalid as refusal:
            self._refuse(SDPA, refusal)
        try:
            self.reference.to_fp64()
            self._pass_all(FP64)
        except Invalid as refusal:
            self._refuse(FP64, refusal)

    def _hold(self, sequence: Sequence) -> None:
        logits = self.reference.one_pass(sequence.ids)
        self.sequences[sequence.name] = sequence
        self.logits[sequence.name] = logits
        self.noise[sequence.name] = Noise.of(logits)
        self._tick("reference, one pass")

    def _pass_all(self, variant: str) -> None:
        for name, sequence in self.sequences.items():
            self._add(variant, name, self.reference.one_pass(sequence.ids))
            self._tick(f"reference, {variant}")

    def _add(self, variant: str, name: str, logits: Logits) -> None:
        self.noise[name].add(variant, self.logits[name], logits)

    def _refuse(self, variant: str, refusal: Invalid) -> None:
        self.refused[variant] = refusal.fact
        for noise in self.noise.values():  # half a variant would make the floors of a run unequal
            noise.variants.pop(variant, None)

    def _tick(self, doing: str) -> None:
        self.done += 1
        self.progress(doing, self.done, self.total)
