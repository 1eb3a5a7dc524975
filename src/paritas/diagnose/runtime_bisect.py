"""Whether the runtime makes the difference: the package run with other settings of ONNX Runtime, one at a time."""

from dataclasses import dataclass

import numpy as np
import onnx

from paritas.diagnose.capture import LOGITS, Captured
from paritas.diagnose.session import Settings
from paritas.diagnose.taps import logits
from paritas.errors import Invalid
from paritas.runtime.package import Package
from paritas.runtime.proto import nodes

OPTIMIZERS = (
    "AttentionFusion",
    "BiasGeluFusion",
    "BiasSkipLayerNormFusion",
    "BiasSoftmaxFusion",
    "CastChainElimination",
    "CastElimination",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "DivMulFusion",
    "DQMatMulNBitsFusion",
    "EmbedLayerNormFusion",
    "FastGeluFusion",
    "GatherSliceToSplitFusion",
    "GeluFusionL1",
    "GeluFusionL2",
    "GemmActivationFusion",
    "GroupQueryAttentionFusion",
    "GroupQueryAttentionPreNormFusion",
    "LayerNormFusionL1",
    "LayerNormFusionL2",
    "MatMulActivationFusion",
    "MatMulAddFusion",
    "MatMulNBitsFusion",
    "MatMulNBitsMlpFusion",
    "MatMulNBitsQkvFusion",
    "MatMulScaleFusion",
    "MatmulTransposeFusion",
    "NchwcTransformer",
    "NotWhereFusion",
    "QuickGeluFusion",
    "ReshapeFusion",
    "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion",
    "SwiGluFusion",
    "TransposeOptimizer",
)
"""Those of ONNX Runtime that write other operators, or in another order."""
VANISHES = 0.1
"""A setting removes a difference if a tenth of it is left, or less."""


@dataclass(frozen=True)
class Knob:
    """One other setting.

    Attributes:
        setting: in words.
        error: largest difference of a logit to the reference's, with it.
        vanishes: whether a tenth of the difference is left, or less.
        refused: what the runtime said, if it would not run so.
    """

    setting: str
    error: float
    vanishes: bool
    refused: str = ""


def bisect(package: Package, captured: Captured) -> tuple[float, tuple[Knob, ...]]:
    """The difference as the package is run, and with each other setting.

    Optimizers are tried one by one only where leaving all of them out removes the difference.

    Args:
        package: the package.
        captured: the reference's logits, of a prefill and of the steps after it, if there are any.

    Raises:
        Invalid: ``runtime-failed`` as the package is.
    """
    before = _error(package, captured, Settings(threads=1), None)
    tried = [
        _knob("one thread for all", package, captured, Settings(threads=None), before, None),
        *(
            _knob(f"graph optimisation: {level}", package, captured, Settings(level, (), 1), before, None)
            for level in ("off", "basic", "extended")
        ),
    ]
    if (exact := _exact(package)) is not None:
        tried.append(
            _knob("accuracy_level 1 (fp32) in MatMulNBits", package, captured, Settings(threads=1), before, exact)
        )
    if any(knob.vanishes for knob in tried if knob.setting.startswith("graph")):
        for name in OPTIMIZERS:
            tried.append(_knob(f"without {name}", package, captured, Settings("all", (name,), 1), before, None))
    return before, tuple(tried)


def _knob(
    words: str,
    package: Package,
    captured: Captured,
    settings: Settings,
    before: float,
    proto: onnx.ModelProto | None,
) -> Knob:
    try:
        error = _error(package, captured, settings, proto)
    except Invalid as refused:
        return Knob(words, float("inf"), False, refused.fact)
    return Knob(words, error, before > 0 and error <= VANISHES * before)


def _error(package: Package, captured: Captured, settings: Settings, proto: onnx.ModelProto | None) -> float:
    ids = [token for one in captured.passes for token in one.ids]
    prefill = len(captured.prefill.ids) if captured.steps else None
    given = logits(package, ids, prefill, settings, proto)
    pairs = zip(given, captured.passes, strict=True)
    return float(max(np.abs(one.astype(np.float64) - of.points[LOGITS]).max() for one, of in pairs))


def _exact(package: Package) -> onnx.ModelProto | None:
    """The graph with quantised products in fp32 arithmetic; None if there are none, or all are already."""
    proto = package.proto
    changed = False
    for node in nodes(proto):
        if node.op_type != "MatMulNBits":
            continue
        level = next((a for a in node.attribute if a.name == "accuracy_level"), None)
        if level is None:
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", 1))
        changed = changed or level is None or level.i != 1
        if level is not None:
            level.i = 1
    return proto if changed else None
