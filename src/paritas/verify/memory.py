"""What the reference said is kept by content, so that it is asked once: a second verification needs no torch.

The key is a hash of everything the answer depends on: the checkpoint's configuration, weights, tokenizer and
generation defaults; the versions of torch and transformers, the processor; how the reference is run; the context of
the package; and our own code in this folder, so that a probe that changed is asked anew.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from paritas.checkpoint import Checkpoint
from paritas.progress import Progress, silent
from paritas.verify import provenance, store
from paritas.verify.caches import Kept
from paritas.verify.evidence import CheckpointRecord, Settings
from paritas.verify.own import Own
from paritas.verify.power import Sight
from paritas.verify.probes import Probe, Sequence
from paritas.verify.reference import Facts
from paritas.verify.truth import Ids, Rounded, Stores, Truth, Truths, find_truths


@dataclass(frozen=True)
class _Record:
    """All of :class:`Truths` that is not an array."""

    checkpoint: CheckpointRecord
    facts: Facts
    ids: Ids
    probes: tuple[Probe, ...]
    sequences: tuple[Sequence, ...]
    variants: tuple[tuple[str, ...], ...]
    refused: Mapping[str, str]
    unused: tuple[str, ...]
    kept: tuple[str, ...]
    power: tuple[tuple[str, str], ...]
    own: Own | None
    dtype: str | None
    refused_dtype: str | None
    narrow: tuple[str, ...]


_RECORD = TypeAdapter(_Record)


def recall_truths(
    checkpoint: Checkpoint,
    progress: Progress = silent,
    context: int | None = None,
    *,
    power: bool = True,
    recorded: Mapping[str, Sequence] | None = None,
    stores: Stores | None = None,
) -> Truths:
    """As :func:`~paritas.verify.truth.find_truths`, out of the cache where it is there, and into it where not.

    Answers that were remembered with ``power`` are answers without it too.
    """
    root = store.cache_folder() / "reference"
    progress("hashing the checkpoint", 0, 1)
    parts = _parts(checkpoint, context, recorded, stores)
    keys = {each: _key(parts, power=each) for each in ([True] if power else [False, True])}
    progress("hashing the checkpoint", 1, 1)
    for key in keys.values():
        entry = store.load(root, key)
        if entry is not None and (truths := _truths(entry, checkpoint.name)) is not None:
            return truths if power else replace(truths, power=())
    truths = find_truths(checkpoint, progress, context, power=power, recorded=recorded, stores=stores)
    if store.save(root, keys[power], _entry(truths)) and (entry := store.load(root, keys[power])) is not None:
        mapped = _truths(entry, checkpoint.name)  # its logits lie on disk, and no longer in memory
        return truths if mapped is None else replace(mapped, ids=truths.ids)
    return truths


def cache_key(
    checkpoint: Checkpoint,
    context: int | None,
    *,
    power: bool = True,
    recorded: Mapping[str, Sequence] | None = None,
    stores: Stores | None = None,
) -> str:
    """Hash of all that the reference's answers depend on."""
    return _key(_parts(checkpoint, context, recorded, stores), power=power)


def _key(parts: Mapping[str, Any], *, power: bool) -> str:
    return _sha256(json.dumps({**parts, "power": power}, sort_keys=True, default=str).encode())


def _parts(
    checkpoint: Checkpoint, context: int | None, recorded: Mapping[str, Sequence] | None, stores: Stores | None
) -> dict[str, Any]:
    machine = provenance.environment()
    return {
        "checkpoint": provenance.checkpoint_sha256(checkpoint),
        "config": checkpoint.config,
        "generation": checkpoint.generation,
        "tokenizer": {name: _sha256(content) for name, content in checkpoint.tokenizer_files.items()},
        "torch": machine.torch,
        "transformers": machine.transformers,
        "machine": (machine.platform, machine.cpu),
        "settings": Settings(seed=None, ids="", refused={}).model_dump(),
        "context": context,
        "recorded": None if recorded is None else {name: list(each.ids) for name, each in recorded.items()},
        "stores": None if stores is None else (stores.sha256, stores.dtype),
        "code": _own_code(),
    }


@cache
def _own_code() -> str:
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), *sorted((here.parent / "runtime").glob("*.py"))]
    return _sha256(b"".join(file.read_bytes() for file in files))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _entry(truths: Truths) -> store.Entry:
    each = tuple(truths.by_name.values())
    record = _Record(
        truths.checkpoint,
        truths.facts,
        truths.ids,
        truths.probes,
        tuple(truth.sequence for truth in each),
        tuple(tuple(truth.variants) for truth in each),
        truths.refused,
        truths.unused,
        tuple(kept.name for kept in truths.kept),
        tuple((sight.fault, sight.probe) for sight in truths.power),
        None if truths.rounded is None else truths.rounded.own,
        None if truths.rounded is None else truths.rounded.dtype,
        None if truths.rounded is None else truths.rounded.refused,
        () if truths.rounded is None else tuple(truths.rounded.noise),
    )
    arrays: dict[str, NDArray[Any]] = {"power": np.array([sight.floors for sight in truths.power], np.float64)}
    for number, truth in enumerate(each):
        arrays[f"logits-{number}"], arrays[f"floors-{number}"] = truth.logits, truth.floors
        arrays[f"variants-{number}"] = np.array(list(truth.variants.values()), np.float64)
    for number, noise in enumerate([] if truths.rounded is None else truths.rounded.noise.values()):
        arrays[f"narrow-{number}"] = noise
    for number, kept in enumerate(truths.kept):
        arrays[f"kept-{number}"], arrays[f"kept-floors-{number}"] = kept.values, kept.floors
    return store.Entry(_RECORD.dump_json(record).decode(), arrays)


def _truths(entry: store.Entry, name: str) -> Truths | None:
    """None if the entry is not what this version writes."""
    try:
        record, arrays = _RECORD.validate_json(entry.text), entry.arrays
        by_name = {
            sequence.name: Truth(
                sequence,
                arrays[f"logits-{number}"],
                np.array(arrays[f"floors-{number}"]),
                dict(zip(record.variants[number], np.array(arrays[f"variants-{number}"]), strict=True)),
            )
            for number, sequence in enumerate(record.sequences)
        }
        kept = tuple(
            Kept(each, arrays[f"kept-{number}"], np.array(arrays[f"kept-floors-{number}"]))
            for number, each in enumerate(record.kept)
        )
        power = tuple(
            Sight(fault, probe, float(floors))
            for (fault, probe), floors in zip(record.power, arrays["power"], strict=True)
        )
        noise = {name: np.array(arrays[f"narrow-{number}"]) for number, name in enumerate(record.narrow)}
    except (ValidationError, KeyError, IndexError, ValueError):
        return None
    return Truths(
        checkpoint=record.checkpoint.model_copy(update={"name": name}),
        facts=record.facts,
        ids=replace(record.ids, remembered=True),
        probes=record.probes,
        by_name=by_name,
        refused=record.refused,
        unused=record.unused,
        kept=kept,
        power=power,
        rounded=None if record.own is None else Rounded(record.own, record.dtype, noise, record.refused_dtype),
    )
