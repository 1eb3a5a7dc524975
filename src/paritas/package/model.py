"""model.onnx: the graph, with the place of every weight in the data file."""

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

import paritas
from paritas.graph.builder import Graph
from paritas.package.data import Placed

MODEL = "model.onnx"
DATA = "model.onnx.data"
_IR_VERSION = 11  # of opset 23; older readers refuse a newer one


def write_model(folder: Path, graph: Graph, placed: Mapping[str, Placed], metadata: Mapping[str, str]) -> None:
    """Write the graph beside its data file."""
    for name, place in placed.items():
        value, weight = graph.ir.initializers[name], graph.weights[name]
        value.const_value = ir.ExternalTensor(
            DATA,
            place.offset,
            place.length,
            ir.DataType.from_numpy(weight.dtype),
            shape=ir.Shape(weight.shape),
            name=name,
            base_dir=str(folder),
        )
    model = ir.Model(
        graph.ir,
        ir_version=_IR_VERSION,
        producer_name="paritas",
        producer_version=paritas.__version__,
        metadata_props=dict(metadata),
    )
    (folder / MODEL).write_bytes(ir.to_proto(model).SerializeToString())
