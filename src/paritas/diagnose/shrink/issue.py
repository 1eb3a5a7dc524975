"""The text of the issue, and the script that makes its checkpoint."""

import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paritas.diagnose.diagnosis import Cause, Diagnosis
from paritas.diagnose.report import ladder
from paritas.diagnose.reproducer import SCRIPT as REGION_SCRIPT
from paritas.diagnose.reproducer import Scene
from paritas.diagnose.shrink import random_checkpoint
from paritas.diagnose.shrink.exporter import Exporter
from paritas.diagnose.shrink.shrunk import CHECKPOINT, ISSUE, PACKAGE, REPRO, SCRIPT, Shrunk
from paritas.verify.provenance import environment, version


def write_issue(shrunk: Shrunk, scene: Scene | None, exporter: Exporter, name: str | None, folder: Path) -> None:
    """Write ISSUE.md and make_checkpoint.py.

    Args:
        shrunk: what was found.
        scene: of its diagnosis; tells the shortest prompt.
        exporter: that made the package.
        name: what it is called; None asks its environment.
        folder: to write into.
    """
    script = checkpoint_script(shrunk.config)
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    own, versions = exporter.versions()
    called = name or (f"{own} {versions.get(own, '')}" if own else Path(exporter.words[0]).name)
    parts = (
        (f"# {_title(shrunk, called)}", ""),
        _summary(shrunk, called),
        _versions(versions, called),
        _steps(shrunk, exporter),
        _causes(shrunk.diagnosis),
        _prompt(scene),
        _region(shrunk),
        _model(shrunk, script),
    )
    (folder / ISSUE).write_text("\n".join(line for part in parts for line in part), encoding="utf-8")


def checkpoint_script(config: Mapping[str, Any]) -> str:
    """A program that writes the checkpoint into a folder of its name; it is the code that wrote it here."""
    source = inspect.getsource(random_checkpoint)
    _, _, code = source.partition("\nimport json\n")
    return (
        f'"""Makes {CHECKPOINT}: python {SCRIPT}, with torch {version("torch")} and transformers '
        f'{version("transformers")}."""\n\nimport json\n{code}\n\n'
        f'CONFIG = r"""\n{json.dumps(config, indent=2)}\n"""\n\n'
        f'if __name__ == "__main__":\n    write_checkpoint(json.loads(CONFIG), Path("{CHECKPOINT}"))\n'
    )


def _title(shrunk: Shrunk, called: str) -> str:
    named = ", ".join(cause.suspect.code for cause in shrunk.diagnosis.causes)
    return f"{called}: logits of {_architecture(shrunk)} differ from transformers ({named})"


def _architecture(shrunk: Shrunk) -> str:
    return str(next(iter(shrunk.config.get("architectures") or ()), shrunk.config["model_type"]))


def _summary(shrunk: Shrunk, called: str) -> Iterator[str]:
    yield (
        f"A package that {called} makes of a small random {_architecture(shrunk)} gives logits that are "
        f"{shrunk.diagnosis.worst_floors:,.0f} times as far from transformers' (fp32, eager) as rounding explains: "
        "as far as transformers is from itself in another precision or order of computation."
    )
    yield ""


def _versions(versions: Mapping[str, str], called: str) -> Iterator[str]:
    here = environment()
    yield from ("## Versions", "", "| | |", "|---|---|", f"| exporter | {called} |")
    for name, number in versions.items():
        yield f"| {name}, where it exports | {number} |"
    yield f"| transformers, reference | {here.transformers} (torch {here.torch}) |"
    yield f"| onnxruntime, which runs the package | {here.onnxruntime} |"
    yield f"| Python, system | {here.python}, {here.platform} |"
    yield ""


def _steps(shrunk: Shrunk, exporter: Exporter) -> Iterator[str]:
    yield from ("## To reproduce", "", "```bash")
    yield f"python {SCRIPT}    # at the end of this text; writes the folder {CHECKPOINT}"
    yield exporter.shown(CHECKPOINT, PACKAGE)
    if shrunk.region is not None:
        yield f"python {REPRO}/{REGION_SCRIPT}    # the wrong region alone; needs onnxruntime and numpy"
    yield f"paritas diagnose {PACKAGE} --against {CHECKPOINT}    # the whole of it; pip install paritas"
    yield from ("```", "")


def _causes(diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("## What is wrong", "")
    for cause in diagnosis.causes:
        yield from _cause(cause)
    yield from ("", "Each change was tried on the whole model; 1 is what rounding explains, 5 the limit:", "")
    yield from ("| experiment | worst difference | |", "|---|---:|---|")
    yield f"| the package as it is | {diagnosis.worst_floors:,.1f} | |"
    for step in ladder(diagnosis.experiments):
        yield f"| {step.words} | {step.floors:,.1f} | {step.mark} |"
    yield ""


def _cause(cause: Cause) -> Iterator[str]:
    suspect = cause.suspect
    yield f"- **{suspect.code}** at {suspect.where} ({cause.proof}): {suspect.message}"
    if suspect.explanation:
        yield f"  {suspect.explanation}"
    if suspect.references:
        yield f"  The same elsewhere: {', '.join(suspect.references)}."


def _prompt(scene: Scene | None) -> Iterator[str]:
    if scene is None:
        return
    prefill, *steps = scene.captured.passes
    decoded = "" if not steps else f", then, one at a time, `{[token for each in steps for token in each.ids]}`"
    yield f"The shortest prompt that shows it: `{list(prefill.ids)}`{decoded}."
    yield ""


def _region(shrunk: Shrunk) -> Iterator[str]:
    region = shrunk.region
    if region is None:
        return
    yield (
        f"`{region.region}` ({region.operator}, {region.phase}) is wrong by itself: fed with transformers' own tensors "
        f"it is {region.local or 0:.1e} off (relative, L2), where rounding explains {region.unit:.1e}: `{REPRO}`."
    )
    yield ""


def _model(shrunk: Shrunk, script: str) -> Iterator[str]:
    count = len(shrunk.tried)
    yield from ("## The model", "")
    yield textwrap.fill(
        f"The smallest that still shows it, of {count} {'that was' if count == 1 else 'that were'} tried: "
        f"{words(shrunk.sizes)}. Every parameter is random."
        + (" More candidates were left than the search was allowed." if shrunk.exhausted else ""),
        width=120,
    )
    yield from (
        "",
        f"<details><summary>{SCRIPT}</summary>",
        "",
        "```python",
        script.rstrip(),
        "```",
        "",
        "</details>",
        "",
    )


def words(sizes: Mapping[str, Any]) -> str:
    """Sizes in words: ``layers 0, 5; heads 2 / 1; hidden 24``."""
    found = (f"{name} {_value(name, value)}" for name, value in sizes.items())
    return "; ".join(found) or "every size is the model's own"


def _value(name: str, value: Any) -> str:
    if name == "heads":
        return f"{value[0]} / {value[1]}"
    if name == "layers":
        return ", ".join(map(str, value))
    return f"{value:,}"
