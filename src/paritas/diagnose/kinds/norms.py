"""Kinds of wrong norms."""

import math

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind, always

_DEFAULTS = (1e-5, 1e-6, 1e-12)


def _is_default(difference: Difference) -> bool:
    return any(math.isclose(difference.package, each, rel_tol=1e-4) for each in _DEFAULTS)


KINDS = (
    Kind(
        "norm-epsilon-default",
        "norm-epsilon",
        _is_default,
        "A norm's epsilon is a usual default instead of the configuration's: the key was read under another name "
        "(rms_norm_eps, layer_norm_eps, norm_eps), or not at all.",
        ("onnxruntime/mobius tolerance guide",),
    ),
    Kind(
        "norm-epsilon-wrong",
        "norm-epsilon",
        always,
        "A norm's epsilon is not the configuration's.",
    ),
    Kind(
        "norm-kind-wrong",
        "norm-kind",
        always,
        "The exporter wrote RMSNorm where the model takes the mean away (LayerNorm), or the other way round.",
        ("onnxruntime/mobius OLMo-1B",),
    ),
    Kind(
        "norm-missing",
        "norm",
        always,
        "A norm of the model is left out: the exporter writes the usual two of a layer, and this family has more.",
        ("onnxruntime/mobius#474",),
    ),
    Kind(
        "qk-norm-missing",
        "qk-norm",
        always,
        "Queries and keys are not normalised, though the checkpoint has norms for them: the exporter does it for a "
        "list of families that this one is not in.",
        ("onnxruntime/mobius#474", "vllm-metal#659"),
    ),
    Kind(
        "value-norm-missing",
        "value-norm",
        always,
        "Values are not normalised. The norm has no weight, so that no tensor of the checkpoint asks for it.",
    ),
    Kind(
        "qk-norm-after-rope",
        "qk-norm-order",
        always,
        "Queries and keys are rotated first and normalised then. The norm's weight is not the same for both halves of "
        "a pair, so the order matters.",
        ("pytorch/torchtune#2809", "vllm-metal#660"),
    ),
)
