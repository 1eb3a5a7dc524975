"""How each semantic operation is written in ONNX: one module a target."""

from paritas.targets.base import Target
from paritas.targets.onnx import OnnxTarget
from paritas.targets.ort import OrtTarget

TARGETS: dict[str, Target] = {target.name: target for target in (OrtTarget(), OnnxTarget())}

__all__ = ["TARGETS", "Target"]
