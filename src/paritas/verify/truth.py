"""Runs the reference once over all sequences: its logits, and the floor of every position."""

import gc
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid
from paritas.progress import Progress, silent
from paritas.runtime.held import Held
from paritas.verify.caches import Kept, KeptNoise
from paritas.verify.compare import Logits
from paritas.verify.evidence import CheckpointRecord
from paritas.verify.floor import FP64, NUDGED, REROUTED, SDPA, STEPS, Noise, floors, strangers
from paritas.verify.own import Own
from paritas.verify.planning import NEW_TOKENS, Plan, crosses, make_plan, with_recorded
from paritas.verify.power import Power, Sight
from paritas.verify.probes import Manner, Probe, Sequence
from paritas.verify.provenance import checkpoint_record
from paritas.verify.reference import Facts, Reference
from paritas.verify.routing import Heard, Noises, Ties
from paritas.verify.spool import spooled
from paritas.verify.text import ids_source


@dataclass(frozen=True)
class Truth:
    """What the reference says of one sequence.

    Attributes:
        logits: ``[positions, vocab]``, fp32, eager, one pass (step by step if the sequence says so).
        floors: ``[positions]``.
        variants: name -> differences ``[positions]``, NaN where the variant does not reach.
    """

    sequence: Sequence
    logits: Logits
    floors: NDArray[np.float64]
    variants: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Ids:
    """Where the token ids come from.

    Attributes:
        origin: in words.
        seed: of random ids; None if they are text.
        remembered: whether all of this comes out of the cache.
    """

    origin: str
    seed: int | None
    remembered: bool = False


@dataclass(frozen=True)
class Stores:
    """What a package of less than fp32 stores.

    Attributes:
        held: its numbers.
        dtype: in which it computes, ``fp16`` or ``bf16``; None if in fp32.
        sha256: of the graph and its data.
    """

    held: Held
    dtype: str | None
    sha256: str


@dataclass(frozen=True)
class Rounded:
    """That the reference answered with a package's own weights in place of the checkpoint's.

    Attributes:
        own: the weights.
        dtype: in which the package computes; None if in fp32.
        noise: what transformers in that dtype differs from itself in fp32, ``[positions]`` of each sequence; empty if
            the package computes in fp32, or torch refuses.
        refused: why torch refuses.
        original: what the reference says of the same sequences with the checkpoint's weights.
    """

    own: Own
    dtype: str | None
    noise: Mapping[str, NDArray[np.float64]]
    refused: str | None = None
    original: Mapping[str, Truth] = field(default_factory=dict[str, Truth])


@dataclass(frozen=True)
class Truths:
    """What the reference says of a checkpoint: all that a package is held against.

    Attributes:
        checkpoint: its name and hash, and transformers' class.
        facts: what the reference's configuration says.
        ids: where the token ids come from.
        probes: what to ask a package.
        by_name: a truth for each sequence.
        refused: variant -> why the reference cannot be asked that way.
        unused: tensors of the checkpoint that the reference does not compute with.
        kept: keys and values after the short sequence, in turn, layer by layer.
        power: what faults in the reference itself would have shown.
        rounded: None if the reference has the checkpoint's weights as they are.
    """

    checkpoint: CheckpointRecord
    facts: Facts
    ids: Ids
    probes: tuple[Probe, ...]
    by_name: Mapping[str, Truth]
    refused: Mapping[str, str]
    unused: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    power: tuple[Sight, ...] = ()
    rounded: Rounded | None = None


def find_truths(
    checkpoint: Checkpoint,
    progress: Progress = silent,
    context: int | None = None,
    *,
    power: bool = True,
    recorded: Mapping[str, Sequence] | None = None,
    stores: Stores | None = None,
) -> Truths:
    """Load the reference, let it answer, and let it go: nothing of it stays in memory but logits.

    Args:
        checkpoint: what is the truth.
        progress: told of every step.
        context: tokens that the package to be judged covers; None if it does not say.
        power: whether to measure what faults would do.
        recorded: sequences of an earlier run, to be asked in place of this one's of the same names.
        stores: what a package stores; the reference then answers with that in place of its own weights.

    Raises:
        ParitasError, Invalid: as :class:`~paritas.verify.reference.Reference` and
            :func:`~paritas.verify.text.ids_source`; ``reference-not-finite``.
    """
    progress("loading the reference", 0, 1)
    reference = Reference(checkpoint)
    own = None if stores is None else reference.hold(stores.held)
    source = ids_source(checkpoint, reference.facts.vocab)
    plan = make_plan(_within(reference.facts, context), source)
    if recorded is not None:
        plan = with_recorded(plan, recorded, reference.facts.switches)
    run = _Run(reference, progress, (4 + len(NUDGED)) * (len(plan.sequences) + len(plan.prompts)), own is not None)
    run.answer(plan)
    seen = Power(reference, plan.sequences, run.logits)
    if power:
        progress("putting faults into the reference", 0, 1)
        seen.measure()
        progress("putting faults into the reference", 1, 1)
    if stores is not None and stores.dtype is not None:
        run.narrow(stores.dtype)
    run.vary()
    found = floors(run.noise)
    truths = Truths(
        checkpoint=checkpoint_record(checkpoint, reference.class_name),
        facts=reference.facts,
        ids=Ids(source.origin, source.seed),
        probes=run.probes(plan),
        by_name={
            name: Truth(sequence, run.logits[name], found[name], run.noise[name].variants)
            for name, sequence in run.sequences.items()
        },
        refused=run.refused,
        unused=reference.unused,
        kept=() if run.kept is None else run.kept.finish(),
        power=seen.sights(found),
        rounded=None
        if own is None or stores is None
        else Rounded(own, stores.dtype, run.narrow_noise, run.refused_narrow),
    )
    del run, reference, seen
    gc.collect()  # transformers' modules are full of circles, and the next thing to be loaded is the package
    return truths


def _within(facts: Facts, context: int | None) -> Facts:
    """The facts for a package that covers ``context`` positions: no probe goes beyond them."""
    sizes = [size for size in (facts.positions, context) if size is not None]
    return replace(facts, positions=min(sizes, default=None))


class _Run:
    """The reference at work."""

    def __init__(self, reference: Reference, progress: Progress, total: int, chooses_anew: bool = False) -> None:
        self.reference, self.progress, self.total, self.done = reference, progress, total, 0
        self._chooses_anew = chooses_anew
        self.narrow_noise: Mapping[str, NDArray[np.float64]] = {}
        self.refused_narrow: str | None = None
        self.sequences: dict[str, Sequence] = {}
        self.logits: dict[str, Logits] = {}
        self.noise: dict[str, Noise] = {}
        self.refused: dict[str, str] = {}
        self.kept: KeptNoise | None = None
        self._no_cache: str | None = None
        self._heard: dict[str, Heard] = {}
        self._routers = Noises()

    def answer(self, plan: Plan) -> None:
        """One pass over everything, and step by step over what is decoded."""
        for sequence in plan.sequences:
            self._hold(sequence)
            if sequence.stop > sequence.prefill and not sequence.stepwise:
                self._add(
                    STEPS,
                    sequence.name,
                    self.reference.steps(sequence.ids[: sequence.stop], sequence.prefill),
                )
            self._tick("reference, step by step")
        for name, prompt in plan.prompts:
            self._choose(name, prompt)
            self._tick("reference, step by step")
        try:
            self.kept = KeptNoise(self.reference.keys_values(self.sequences["short"].ids))
        except Invalid as refusal:
            self._no_cache = refusal.fact

    def vary(self) -> None:
        """The variants that change the arithmetic, those that cannot be undone last: fp64, then nudged weights."""
        with self._refusable(SDPA), self.reference.sdpa():
            self._pass_all(SDPA)
        with self._refusable(FP64):
            self.reference.to_fp64()
            self._pass_all(FP64)
        for seed, variant in enumerate(NUDGED):
            with self._refusable(variant):
                self.reference.nudge(seed)
                self._pass_all(variant)
        with self._refusable(REROUTED):
            self._reroute()
        for variant, fact in strangers(self.noise).items():
            self._drop(variant, fact)

    def _reroute(self) -> None:
        """Sequences in which a router's choice hangs on rounding, with each such choice made the other way."""
        for name, ties, first in self._tied(self._routers):
            self._choose_the_other_way(self.noise[name], name, ties, first)
            if name == "short" and self.kept is not None:
                ids = self.sequences[name].ids
                with self.reference.rerouting(ties):
                    self.kept.add(REROUTED, self.reference.keys_values(ids))
                self.kept.cut(REROUTED, first, len(ids))

    def _tied(self, routers: Noises) -> Iterator[tuple[str, Ties, int]]:
        """Sequences with ties within the noise of their routers, and the first token of each that has one."""
        for name, heard in self._heard.items():
            ties = routers.ties(heard)
            if ties.first is not None:
                yield name, ties, ties.first

    def _choose_the_other_way(self, noise: Noise, name: str, ties: Ties, first: int) -> None:
        with self.reference.rerouting(ties):
            noise.add(REROUTED, self.logits[name], self._ask(self.sequences[name]))
        noise.cut(REROUTED, first)

    def narrow(self, dtype: str) -> None:
        """What transformers in a narrow dtype differs from itself in fp32, as floors.

        Routers hear more noise in it, so that more of their choices hang on rounding than in fp32; transformers and
        the package then part at other tokens each, and those choices are made the other way here too.
        """
        noise = {name: Noise.of(logits) for name, logits in self.logits.items()}
        routers = Noises()
        try:
            with self.reference.in_dtype(dtype):
                for name, sequence in self.sequences.items():
                    with self.reference.hearing() as heard:
                        noise[name].add(dtype, self.logits[name], self._ask(sequence))
                    routers.add(self._heard[name], heard)
                for name, ties, first in self._tied(routers):
                    self._choose_the_other_way(noise[name], name, ties, first)
        except Invalid as refusal:
            self.refused_narrow = refusal.fact
        else:
            self.narrow_noise = floors(noise)

    def probes(self, plan: Plan) -> tuple[Probe, ...]:
        """Those of the plan; the caches' cannot be asked if the reference keeps none."""
        return tuple(
            replace(probe, obstacle=self._no_cache) if probe.manner is Manner.CACHE else probe for probe in plan.probes
        )

    def _choose(self, name: str, prompt: tuple[int, ...]) -> None:
        """Greedy tokens become a sequence."""
        tokens, steps = self.reference.greedy(prompt, NEW_TOKENS)
        ids = (*prompt, *tokens[:-1])
        stepwise = crosses(self.reference.facts.switches, len(prompt), len(ids))
        self._hold(Sequence(name, ids, len(prompt), len(ids), tokens, len(prompt), stepwise))
        if not stepwise:
            self._add(STEPS, name, steps)

    def _hold(self, sequence: Sequence) -> None:
        with self.reference.hearing() as heard:
            logits = self._ask(sequence)
        self._heard[sequence.name] = heard
        if self._chooses_anew and sequence.greedy:  # the tokens are those of other weights; so are the choices
            chosen = logits[sequence.prompt - 1 : sequence.prompt - 1 + len(sequence.greedy)].argmax(axis=1)
            sequence = replace(sequence, greedy=tuple(chosen.tolist()))
        self.sequences[sequence.name] = sequence
        self.noise[sequence.name] = Noise.of(logits)
        self.logits[sequence.name] = spooled(logits)
        self._tick("reference, one pass")

    def _ask(self, sequence: Sequence) -> Logits:
        if sequence.stepwise:
            return self.reference.steps(sequence.ids, sequence.prefill)
        return self.reference.one_pass(sequence.ids)

    def _pass_all(self, variant: str) -> None:
        for name, sequence in self.sequences.items():
            with self.reference.hearing() as heard:
                self._add(variant, name, self._ask(sequence))
            if variant in NUDGED:
                self._routers.add(self._heard[name], heard)
            self._tick(f"reference, {variant}")
        if self.kept is not None:
            self.kept.add(variant, self.reference.keys_values(self.sequences["short"].ids))

    def _add(self, variant: str, name: str, logits: Logits) -> None:
        self.noise[name].add(variant, self.logits[name], logits)

    @contextmanager
    def _refusable(self, variant: str) -> Generator[None]:
        try:
            yield
        except Invalid as refusal:
            self._drop(variant, refusal.fact)

    def _drop(self, variant: str, fact: str) -> None:
        self.refused[variant] = fact
        for noise in self.noise.values():  # half a variant would make the floors of a run unequal
            noise.variants.pop(variant, None)
        if self.kept is not None:
            self.kept.drop(variant)

    def _tick(self, doing: str) -> None:
        self.done += 1
        self.progress(doing, self.done, self.total)
