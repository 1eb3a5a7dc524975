"""A package's drafter beside transformers' own, on what transformers' own target gave, so that no fault of the target
is laid to the drafter.

At several lengths of a text, transformers' target gives its last hidden state and its cached keys and values; behind
each, transformers' drafter guesses a few tokens in a row. Each of these calls is then put to the package's drafter as
it was put to transformers' one. The floor is made as everywhere (:mod:`paritas.verify.floor`): the same calls in fp64,
with SDPA, and with every weight a last bit off.
"""

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Checkpoint
from paritas.progress import Progress, silent
from paritas.runtime.assistant import FOLDER, GRAPH, replay
from paritas.runtime.package import Package
from paritas.verify.compare import differ
from paritas.verify.floor import FP64, NUDGED, SDPA, Noise, floors
from paritas.verify.loading import require_torch
from paritas.verify.reference import Reference
from paritas.verify.text import ids_source
from paritas.verify.verdict import Verdict, judge

FILE = Path("evidence") / "drafter.json"
GUESSES = 4
_MOST = 600  # tokens of the longest text that is asked
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Call:
    """One call of a drafter.

    Attributes:
        embeds: ``[1, 1, 2 * target_hidden]``.
        position: of the last token.
        keys_values: kind of layer -> keys and values ``[1, kv_heads, length, head_dim]``.
    """

    embeds: Values
    position: int
    keys_values: Mapping[str, tuple[Values, Values]]


@dataclass(frozen=True)
class DrafterEvidence:
    """What was compared, and how far apart it was.

    Attributes:
        verdict: by the gates of every package.
        worst_floors: the greatest difference, in floors.
        largest_logit_difference, largest_carry_difference: absolute.
        lengths: of the texts behind which it guessed.
        guesses: in a row behind each.
        same_tokens: guesses of the package that are transformers' own.
    """

    verdict: Verdict
    worst_floors: float
    largest_logit_difference: float
    largest_carry_difference: float
    lengths: tuple[int, ...]
    guesses: int
    same_tokens: int

    def write(self, package: Path) -> None:
        """Into the package's evidence."""
        (package / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def verify_drafter(
    package: Package, target: Checkpoint, drafter: Checkpoint, progress: Progress = silent
) -> DrafterEvidence:
    """Hold the drafter in a package against transformers'.

    Args:
        package: the target's, with ``assistant/``.
        target, drafter: the checkpoints of both.
        progress: told of every step.

    Raises:
        ParitasError, Invalid: as :func:`paritas.verify.run.verify`.
    """
    progress("asking the drafter", 0, 3)
    lengths, calls, wanted = _asked(target, drafter)
    progress("asking the drafter", 1, 3)
    reference = Reference(drafter)
    noise = [Noise.of(each) for each in wanted]
    for variant, answers in _variants(reference, calls):
        for each, want, got in zip(noise, wanted, answers, strict=True):
            each.add(variant, want, got)
    del reference
    gc.collect()
    progress("asking the drafter", 2, 3)
    logits, carries = replay(package, [(call.embeds, call.position, _named(call)) for call in calls])
    floor = floors({str(index): each for index, each in enumerate(noise)})
    found = [differ(want, got)[0] for want, got in zip(wanted, (logits, carries), strict=True)]
    worst = max(float((found[index] / floor[str(index)]).max()) for index in range(2))
    progress("asking the drafter", 3, 3)
    return DrafterEvidence(
        verdict=judge(worst),
        worst_floors=worst,
        largest_logit_difference=float(found[0].max()),
        largest_carry_difference=float(found[1].max()),
        lengths=lengths,
        guesses=GUESSES,
        same_tokens=int((wanted[0].argmax(axis=1) == logits.argmax(axis=1)).sum()),
    )


def _asked(target: Checkpoint, drafter: Checkpoint) -> tuple[tuple[int, ...], list[Call], tuple[Values, Values]]:
    """The lengths, every call, and transformers' answers to them: logits and carries ``[calls, width]``."""
    torch, _ = require_torch()
    reference, guessing = Reference(target), Reference(drafter)
    lengths = _lengths(reference.facts.windows, reference.facts.positions)
    ids = ids_source(target, reference.facts.vocab).running(max(lengths))
    embed = reference.model.get_input_embeddings()
    calls: list[Call] = []
    answers: list[tuple[Values, Values]] = []
    for length in lengths:
        with torch.inference_mode():
            seen = reference.model(
                input_ids=torch.tensor([ids[:length]]),
                use_cache=True,
                output_hidden_states=True,
                return_shared_kv_states=True,
            )
            token, carry = int(seen.logits[0, -1].argmax()), seen.hidden_states[-1][:, -1:].numpy()
            kept = {kind: (key.numpy(), value.numpy()) for kind, (key, value) in seen.shared_kv_states.items()}
        for _ in range(GUESSES):
            with torch.inference_mode():
                row = embed(torch.tensor([[token]])).numpy()
            calls.append(Call(np.concatenate([row, carry], axis=-1), length, kept))
            answers.append(_call(guessing.model, calls[-1]))
            token, carry = int(answers[-1][0].argmax()), answers[-1][1][None, None]
    return lengths, calls, _stacked(answers)


def _lengths(windows: Sequence[int], positions: int | None) -> tuple[int, ...]:
    """Short, and on both sides of every window; a drafter sees one key more than a window holds."""
    most = min(_MOST, (positions or _MOST) - GUESSES)
    wanted = {1, 6, *(window + more for window in windows for more in (-1, 0, 1, 2)), *(2 * w + 3 for w in windows)}
    return tuple(sorted(length for length in wanted if 0 < length <= most))


def _variants(reference: Reference, calls: Sequence[Call]) -> "list[tuple[str, tuple[Values, Values]]]":
    """What the same drafter says in other arithmetic; fp64 and the nudges cannot be undone, so they come last."""
    found = [(SDPA, _sdpa(reference, calls))]
    reference.to_fp64()
    found.append((FP64, _answers(reference, calls)))
    for seed, name in enumerate(NUDGED):
        reference.nudge(seed)
        found.append((name, _answers(reference, calls)))
    return found


def _sdpa(reference: Reference, calls: Sequence[Call]) -> tuple[Values, Values]:
    with reference.sdpa():
        return _answers(reference, calls)


def _answers(reference: Reference, calls: Sequence[Call]) -> tuple[Values, Values]:
    return _stacked([_call(reference.model, call) for call in calls])


def _stacked(answers: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    return np.stack([logits for logits, _ in answers]), np.stack([carry for _, carry in answers])


def _call(model: Any, call: Call) -> tuple[Any, Any]:
    """Logits ``[vocab]`` and carry ``[target_hidden]``, in the arithmetic that the model is set to."""
    torch, _ = require_torch()
    dtype = model.pre_projection.weight.dtype
    keys_values = {
        kind: tuple(torch.from_numpy(half).to(dtype) for half in pair) for kind, pair in call.keys_values.items()
    }
    with torch.inference_mode():
        out = model(
            inputs_embeds=torch.from_numpy(call.embeds).to(dtype),
            position_ids=torch.tensor([[call.position]]),
            attention_mask=torch.ones(1, call.position, dtype=torch.long),
            shared_kv_states=keys_values,
        )
    return out.logits[0, 0].numpy(), out.last_hidden_state[0, 0].numpy()


def _named(call: Call) -> dict[str, Values]:
    """As the graph names what it borrows."""
    return {
        f"shared_kv.{kind}.{half}": value
        for kind, pair in call.keys_values.items()
        for half, value in zip(("key", "value"), pair, strict=True)
    }


def has_drafter(folder: Path) -> bool:
    """Whether a package has a drafter of its own."""
    return (folder / FOLDER / GRAPH).is_file()
