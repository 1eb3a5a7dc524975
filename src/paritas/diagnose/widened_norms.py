"""A norm of a narrow graph, computed in fp32: its weight may then be a number that the narrow type cannot hold."""

import numpy as np
import onnx
from onnx import helper

from paritas.diagnose.edit import Array, Edit

_FLOAT = onnx.TensorProto.FLOAT


def norm_in_fp32(edit: Edit, output: str, place: int, weight: Array, what: str) -> None:
    """Let a norm take and give fp32 between Casts, with another weight.

    Args:
        edit: of the graph.
        output: of the norm.
        place: of the weight among its inputs.
        weight: in fp32; what is in its place tells the graph's type.
        what: for people.
    """
    node = edit.node(output)
    narrow = helper.np_dtype_to_tensor_dtype(edit.taken(output, place, weight).dtype)
    wide = [
        edit.add_as_is(f"{name}.wide", weight.astype(np.float32))
        if number == place
        else edit.insert_node("Cast", [name], attributes={"to": _FLOAT})
        if name
        else ""
        for number, name in enumerate(node.input)
    ]
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    olds = list(node.output)
    first = edit.insert_node(node.op_type, wide, domain=node.domain, outputs=len(olds), attributes=attributes)
    for old, new in zip(olds, list(edit.node(first).output), strict=True):
        if old:
            cast = edit.insert_node("Cast", [new], attributes={"to": narrow})
            edit.redirect(old, cast, f"{node.op_type} {node.name or old}: in fp32; {what}")
