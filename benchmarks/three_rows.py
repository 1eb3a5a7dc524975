"""A cause proven by one change: a Gemma 3 whose local layers inherit the global layers' RoPE factor, in three rows.

    python benchmarks/three_rows.py [CHECKPOINT] [--out FOLDER]

The experiment of a public report on the model builder of ORT GenAI (microsoft/onnxruntime-genai#2277, #2884): the
same checkpoint is exported wrong (as broken), that package is diagnosed and repaired of its one cause (one change),
and the checkpoint is exported right (as fixed). If the second row is the third, nothing else was wrong.

CHECKPOINT is a Gemma 3 folder; without a factor in its global layers it is copied, and given the factor 8 of the 4B,
12B and 27B models. Without CHECKPOINT, a tiny random Gemma 3. For each package: the worst difference of all probes in
floors; of the five prompts of the report, the difference of the first new token's logits, how many of all positions
have the same best token, and how many greedy continuations of 20 tokens are the same; and the text of each, where
there is a tokenizer.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import pytest

import tiny
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.repair import write
from paritas.diagnose.run import diagnose
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession
from paritas.spec import Linear
from paritas.targets import TARGETS
from paritas.verify.rounded import truths_for
from paritas.verify.run import judge
from paritas.verify.truth import Truths
from test_mutants import in_attention

FACTOR = 8.0
RAW = ("onnxruntime",)


@dataclass(frozen=True)
class Row:
    """One package beside the reference.

    Attributes:
        what: was done.
        floors: worst difference of all probes.
        firsts: greatest difference of the first new token's logits, for each prompt.
        best, positions: positions of prompts and continuations with the same best token, of how many.
        same: greedy continuations that are the reference's.
        texts: ids of each continuation.
    """

    what: str
    floors: float
    firsts: tuple[float, ...]
    best: int
    positions: int
    same: int
    texts: tuple[tuple[int, ...], ...]


def main() -> None:
    """The three packages, the diagnosis between them, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, help="where the packages are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out: Path = given.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("PARITAS_CACHE", str(out / "cache"))
        folder = scaled(given.checkpoint, out / "checkpoint") if given.checkpoint else tiny_one(out / "checkpoint")
        show(list(rows(folder, out)), folder)


def tiny_one(folder: Path) -> Path:
    """Seven layers, random in every parameter, factor 8 in the global ones."""
    if not folder.exists():
        tiny.every()["gemma3"](folder)
    return folder


def scaled(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint, if its global layers have a factor; else a copy in which they have."""
    config = json.loads((checkpoint / "config.json").read_text())
    rope = config.get("rope_parameters", {}).get("full_attention", config.get("rope_scaling") or {})
    if rope.get("factor"):
        return checkpoint
    if not folder.exists():
        shutil.copytree(checkpoint, folder)
    factor = {"rope_type": "linear", "factor": FACTOR}
    if "rope_parameters" in config:
        config["rope_parameters"]["full_attention"] |= factor
    else:
        config["rope_scaling"] = factor
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rows(folder: Path, out: Path) -> Iterator[Row]:
    """As broken, after one change, as fixed."""
    broken, changed, fixed = (out / name for name in ("as-broken", "one-change", "as-fixed"))
    for package in (broken, changed, fixed):
        shutil.rmtree(package, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        in_attention("sliding", rope=lambda attention: replace(attention.rope, scaling=Linear(factor_of(folder))))(
            patch
        )
        export(folder, broken, TARGETS["ort"], Options())
    truths = truths_for(open_package(broken), open_checkpoint(folder), lambda *_: None, cache=True, power=False)
    yield row("as broken: local layers have the global factor", broken, truths)
    found = diagnose(broken, folder)
    for cause in found.diagnosis.causes:
        print(f"cause: {cause.suspect.code} at {cause.suspect.where}, {cause.proof.value}; {cause.suspect.message}")
    for each in found.diagnosis.experiments:
        print(f"  {each.side}: {each.change}: {each.before:,.1f} -> {each.after:,.1f} floors")
    if found.edit is None:
        raise SystemExit("no cause was found")
    done = write(found.case, found.edit, changed)
    print("changed: " + "; ".join(dict.fromkeys(line.split(": ", 1)[-1] for line in done.lines)), end="\n\n")
    yield row("one change: the cause that was found, repaired", changed, truths)
    del found, done
    export(folder, fixed, TARGETS["ort"], Options())
    yield row("as fixed: exported with a RoPE for each layer", fixed, truths)


def factor_of(folder: Path) -> float:
    """Of the global layers."""
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters", {}).get("full_attention", config.get("rope_scaling") or {})
    return float(rope["factor"])


def row(what: str, package: Path, truths: Truths) -> Row:
    """Measure one package."""
    opened = open_package(package)
    evidence = judge(opened, truths, RAW)
    session = RawSession(opened)
    asked = [truth for name, truth in truths.by_name.items() if name.startswith("greedy-")]
    firsts: list[float] = []
    texts: list[tuple[int, ...]] = []
    best = positions = 0
    for truth in asked:
        sequence = truth.sequence
        logits = session.forward(np.array([sequence.ids], np.int64))[0][0]
        firsts.append(float(np.abs(logits[sequence.prompt - 1] - truth.logits[sequence.prompt - 1]).max()))
        best += int((logits.argmax(axis=1) == truth.logits.argmax(axis=1)).sum())
        positions += len(logits)
        texts.append(greedy(session, sequence.ids[: sequence.prompt], len(sequence.greedy), truths.facts.eos))
    same = sum(text == truth.sequence.greedy for text, truth in zip(texts, asked, strict=True))
    return Row(what, evidence.worst_floors or 0.0, tuple(firsts), best, positions, same, tuple(texts))


def greedy(session: RawSession, prompt: Sequence[int], count: int, stops: frozenset[int]) -> tuple[int, ...]:
    """The best token, again and again."""
    logits, state = session.forward(np.array([prompt], np.int64))
    tokens = [int(logits[0, -1].argmax())]
    while len(tokens) < count and tokens[-1] not in stops:
        logits, state = session.forward(np.array([tokens[-1:]], np.int64), state)
        tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens)


def show(found: Sequence[Row], folder: Path) -> None:
    """The table, and the texts."""
    print(
        "| export of the same checkpoint | worst, floors | first token's logits, max abs diff | best token | greedy |"
    )
    print("|---|---|---|---|---|")
    for each in found:
        firsts = f"{min(each.firsts):.2g} to {max(each.firsts):.2g}"
        counts = f"{each.best} of {each.positions} | {each.same} of {len(each.texts)}"
        print(f"| {each.what} | {each.floors:,.1f} | {firsts} | {counts} |")
    tokenizer = _tokenizer(folder)
    for number in range(len(found[0].texts)):
        print(f"\nprompt {number + 1}")
        for each in found:
            ids = each.texts[number]
            print(f"  {each.what.partition(':')[0]:12s} {tokenizer.decode(ids)!r}" if tokenizer else f"  {ids}")


def _tokenizer(folder: Path) -> Any | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


if __name__ == "__main__":
    main()
