"""Graphs in memory, run by ONNX Runtime: their external data stay in the package's files."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.runtime.exact import LEVEL
from paritas.runtime.faults import refusal
from paritas.runtime.ports import Ports
from paritas.runtime.rows import ALL
from paritas.runtime.session import AS_STORED

Values = Mapping[str, NDArray[Any]]
_FOLDER = "session.model_external_initializers_file_folder_path"
_DISABLED = "optimization.disable_specified_optimizers"
_SILENT = 4
LEVELS: Mapping[str, str] = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass(frozen=True)
class Settings:
    """How ONNX Runtime is asked to compute.

    Attributes:
        level: of graph optimisation: ``off``, ``basic``, ``extended``, ``all``.
        disabled: names of single optimizers that are left out.
        threads: within an operator; None leaves it to the runtime.
    """

    level: str = "all"
    disabled: tuple[str, ...] = ()
    threads: int | None = None


class Session:
    """A graph that was made in memory, in ``onnxruntime.InferenceSession`` on the CPU.

    Args:
        proto: the graph.
        model: the package's graph beside which the external data lie.
        settings: of the runtime.

    Raises:
        Invalid: ``runtime-failed``.
    """

    def __init__(self, proto: onnx.ModelProto, model: Path, settings: Settings | None = None) -> None:
        ort: Any = importlib.import_module("onnxruntime")
        settings = settings or Settings()
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[settings.level])
        options.add_session_config_entry(_FOLDER, str(model.parent.absolute()))
        options.add_session_config_entry(*LEVEL)  # else a fused DequantizeLinear rounds what it multiplies
        options.add_session_config_entry(*AS_STORED)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_reuse = False  # ONNX Runtime 1.32 mixes up buffers where an input has no shape
        if settings.threads is not None:
            options.intra_op_num_threads = settings.threads
        self._model = model
        left_out = list(settings.disabled)
        try:
            self._session: Any = ort.InferenceSession(
                proto.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=left_out
            )
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            raise refusal("onnxruntime", "load a part of the graph", error, model) from error
        inputs = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        self.elements: Mapping[str, str] = {each.name: each.type for each in inputs}
        self.types: Mapping[str, str] = {each.name: each.type for each in self._session.get_outputs()}

    def run(self, feeds: Values, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Values of ``outputs`` by name; feeds that the graph does not take are left out.

        Raises:
            Invalid: ``runtime-failed``.
        """
        given = {name: _as(feeds[name], kind) for name, kind in self.elements.items() if name in feeds}
        try:
            values = self._session.run(list(outputs), given)
        except Exception as error:
            raise refusal("onnxruntime", "run a part of the graph", error, self._model) from error
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}


def feeds(
    ports: Ports, ids: Sequence[int], past: int, carried: Values, mask: NDArray[np.int64] | None = None
) -> dict[str, NDArray[Any]]:
    """What a package is fed for new tokens of one sequence.

    Args:
        ports: the package's.
        ids: new tokens.
        past: tokens before them.
        carried: what the call before gave, by the name under which it is taken; empty for the first call.
        mask: ``[past + new]``, 1 for a real token, 0 for padding; None if all are real.

    Raises:
        Invalid: ``graph-no-cache`` for tokens after others that the graph cannot remember.
    """
    if past and not ports.carried:
        raise Invalid(
            "graph-no-cache",
            "the graph has no caches, so it cannot go on from an earlier call",
            hint="Give it the whole sequence at once, or export it with its caches.",
        )
    new = len(ids)
    found: dict[str, NDArray[Any]] = {ports.input_ids: np.array([ids], np.int64)}
    if ports.kept is not None:
        found[ports.kept] = np.array(ALL, np.int64)
    real = np.ones(past + new, np.int64) if mask is None else mask
    if ports.attention_mask is not None:
        unused = 0 if ports.mask_width is None else ports.mask_width - past - new
        found[ports.attention_mask] = np.pad(real, (0, unused))[None]
    if ports.position_ids is not None:
        found[ports.position_ids] = np.maximum(np.cumsum(real) - 1, 0)[None, past:]
    found |= {counter.name: counter.value(1, past, new) for counter in ports.counters}
    fresh = {each.past: np.zeros((1, *each.fresh), each.dtype) for each in ports.carried}
    return found | fresh | dict(carried)


def handed_on(ports: Ports, given: Values) -> dict[str, NDArray[Any]]:
    """Outputs of a call as inputs of the next."""
    return {each.past: given[each.present] for each in ports.carried if each.present in given}


_TYPES: Mapping[str, type[Any]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def _as(value: NDArray[Any], kind: str) -> NDArray[Any]:
    return np.ascontiguousarray(value, _TYPES[kind]) if kind in _TYPES else value
