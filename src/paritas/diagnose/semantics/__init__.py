"""What fused operators are documented to compute, said in numpy: independent of any runtime's kernels.

A statement takes the inputs of a node (None where one is left out) and its attributes, and gives the first output. It
computes in the type of the floats it is given. Sources: ONNX Runtime's operator schemas
(``onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema``) and the ONNX operator documentation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.view import attributes
from paritas.diagnose.semantics import activations, attention, norms, rotary

Array = NDArray[Any]
Inputs = Sequence[Array | None]
Statement = Callable[[Inputs, Mapping[str, Any]], Array]
_CONTRIB = "com.microsoft"

STATEMENTS: Mapping[tuple[str, str], Statement] = {
    (_CONTRIB, "GroupQueryAttention"): attention.group_query_attention,
    (_CONTRIB, "MultiHeadAttention"): attention.multi_head_attention,
    ("", "Attention"): attention.attention,
    (_CONTRIB, "RotaryEmbedding"): rotary.contrib_rotary_embedding,
    ("", "RotaryEmbedding"): rotary.rotary_embedding,
    ("", "RMSNormalization"): norms.rms_normalization,
    ("", "SimplifiedLayerNormalization"): norms.rms_normalization,
    ("", "LayerNormalization"): norms.layer_normalization,
    (_CONTRIB, "SkipSimplifiedLayerNormalization"): norms.skip_rms_normalization,
    (_CONTRIB, "SkipLayerNormalization"): norms.skip_layer_normalization,
    ("", "Gelu"): activations.gelu,
    (_CONTRIB, "Gelu"): activations.gelu,
    (_CONTRIB, "FastGelu"): activations.fast_gelu,
    (_CONTRIB, "BiasGelu"): activations.bias_gelu,
    (_CONTRIB, "QuickGelu"): activations.quick_gelu,
}


def statement(node: onnx.NodeProto) -> Statement | None:
    """Of an operator, or None if there is none here."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return STATEMENTS.get((domain, node.op_type))


def stated(node: onnx.NodeProto, inputs: Inputs, kind: type[np.floating[Any]]) -> Array:
    """The first output of a node as its documentation has it, in arithmetic of ``kind``.

    Raises:
        KeyError: there is no statement of the operator.
        NotStated: there is one, but not of what this node asks for.
    """
    found = statement(node)
    if found is None:
        raise KeyError(node.op_type)
    wide = [each.astype(kind) if each is not None and each.dtype.kind == "f" else each for each in inputs]
    return found(wide, attributes(node))
