"""A folder that shows a fault with public tools alone: a region of the graph, what it is given, what it should give."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from paritas.diagnose.align import Alignment
from paritas.diagnose.capture import Captured
from paritas.diagnose.diagnosis import Diagnosis, RegionError
from paritas.diagnose.extract import extract
from paritas.diagnose.reset import cut_graph, fed, reference
from paritas.errors import ParitasError
from paritas.package.staging import publish, staging
from paritas.runtime.package import Package
from paritas.runtime.stored import tensors
from paritas.verify.provenance import version

MODEL, GIVEN, EXPECTED, SCRIPT, TEXT = "region.onnx", "given.npz", "expected.npy", "repro.py", "README.md"


@dataclass(frozen=True)
class Scene:
    """What a package was laid beside."""

    package: Package
    alignment: Alignment
    captured: Captured


def write_reproducer(scene: Scene | None, diagnosis: Diagnosis, out: Path) -> RegionError:
    """Write the smallest region that is wrong by itself, with the reference's tensors around it, to the folder ``out``.

    Returns:
        The region.

    Raises:
        ParitasError: ``nothing-to-reproduce`` if no region is wrong by itself; ``disk-full``.
        Invalid: ``runtime-failed``.
    """
    sources = diagnosis.where.sources if diagnosis.where else ()
    if scene is None or not sources:
        raise ParitasError(
            "nothing-to-reproduce",
            "no region of the graph is wrong by itself",
            place=diagnosis.package,
            hint="The causes and experiments of the diagnosis are what there is to show.",
        )
    parts = {each.value: _part(scene, each) for each in sources}
    region = min(sources, key=lambda each: parts[each.value].ByteSize())
    proto = parts[region.value]
    call = 0 if region.phase == "prefill" else len(scene.captured.passes) - 1
    given = fed(scene.package, scene.alignment, scene.captured)[call].taken
    expected = reference(scene.alignment.cuts, scene.captured.passes[call])[region.value]
    with staging(out) as folder:
        (folder / MODEL).write_bytes(proto.SerializeToString())
        inputs: Mapping[str, NDArray[Any]] = {value.name: given[value.name] for value in proto.graph.input}
        np.savez(folder / GIVEN, allow_pickle=False, **inputs)
        np.save(folder / EXPECTED, expected)
        (folder / SCRIPT).write_text(_script(region), encoding="utf-8")
        (folder / TEXT).write_text(_text(diagnosis, region), encoding="utf-8")
        publish(folder, out)
    return region


def _part(scene: Scene, region: RegionError) -> onnx.ModelProto:
    """The region alone, with its weights in it."""
    cut, names = cut_graph(scene.alignment, frozenset(), ())
    part = extract(cut, (), [names[region.value]]).proto
    stored = tensors(scene.alignment.proto, scene.package.model.parent)
    for tensor in part.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(stored[tensor.name].array(), tensor.name))
    return part


def _script(region: RegionError) -> str:
    return textwrap.dedent(f'''\
        """Run with onnxruntime and numpy alone: python {SCRIPT}"""

        import sys
        from pathlib import Path

        import numpy as np
        import onnxruntime

        here = Path(__file__).parent
        session = onnxruntime.InferenceSession(str(here / "{MODEL}"), providers=["CPUExecutionProvider"])
        given = dict(np.load(here / "{GIVEN}"))
        expected = np.load(here / "{EXPECTED}")
        (found,) = session.run(None, given)
        apart = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64))
        print("onnxruntime", onnxruntime.__version__)
        worst = np.unravel_index(np.abs(found - expected).argmax(), expected.shape)
        print("farthest apart at", [int(each) for each in worst])
        print(f"expected {{expected[worst]}}, found {{found[worst]}}")
        print(f"relative difference {{apart:.1e}}; rounding explains {region.unit:.1e}")
        sys.exit(apart > {region.unit!r})
        ''')


def _text(diagnosis: Diagnosis, region: RegionError) -> str:
    causes = "\n".join(
        f"- `{cause.suspect.code}` at {cause.suspect.where}: {cause.suspect.message} ({cause.proof})"
        for cause in diagnosis.causes
    )
    lines = [
        f"# {region.region} is not what transformers computes",
        "",
        f"`{MODEL}` is one region of an exported package ({region.operator}), `{GIVEN}` what transformers computes",
        f"before it in fp32, and `{EXPECTED}` what transformers computes there itself. Given the same tensors, the",
        f"region is {region.local or 0:.1e} away (relative, L2, at its worst token); rounding explains",
        f"{region.unit:.1e}.",
        "",
        "    pip install onnxruntime numpy",
        f"    python {SCRIPT}",
        "",
        f"Causes, as found by Paritas {version('paritas')} on the whole model, which is",
        f"{diagnosis.worst_floors:,.0f} times the reference's own noise away from it:",
        "",
        causes or "- none proved",
    ]
    return "\n".join(lines) + "\n"
