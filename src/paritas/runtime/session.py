"""Any decoder graph in a plain ONNX Runtime session on the CPU. Caches stay in the runtime between calls."""

import ctypes
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.runtime import exact
from paritas.runtime.decoder import State
from paritas.runtime.faults import refusal
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.states import Carried

# ONNX Runtime has no types: the module and all that comes out of it are Any, in this file alone.
_ort: Any = importlib.import_module("onnxruntime")
_state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
_ERROR_KINDS: list[Any] = [kind for kind in _state.__dict__.values() if isinstance(kind, type)]
# Its errors share no base of their own.
_ERRORS: tuple[type[Exception], ...] = (RuntimeError, *(k for k in _ERROR_KINDS if issubclass(k, Exception)))
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_SILENT = 4  # log severity: fatal only; what is wrong arrives as an exception


@dataclass(frozen=True)
class RawState:
    """Caches after ``length`` tokens; never written to, so two calls may go on from the same state.

    Attributes:
        caches: ``OrtValue`` s in the layout of the graph: key and value in turn, then other states.
    """

    length: int
    batch: int
    caches: tuple[Any, ...]


class RawSession:
    """A package's graph in ``onnxruntime.InferenceSession``; see :class:`paritas.runtime.decoder.Decoder`.

    Args:
        package: what to load.
        threads: threads within an operator; None leaves it to the runtime.
        graph: a changed graph with the same inputs and outputs, serialised, in place of the package's; its external
            data is the package's, which is read where it lies.

    Raises:
        Invalid: ``runtime-failed``; or the graph is no decoder (as :func:`paritas.runtime.ports.read_ports` tells).
    """

    runtime = "onnxruntime"

    def __init__(self, package: Package, threads: int | None = None, graph: bytes | None = None) -> None:
        self.version: str = _ort.__version__
        self.ports = read_ports(package.model, package.head_size, package.rewritten)
        self._model = package.model
        options = _ort.SessionOptions()
        options.log_severity_level = _SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        if graph is None and package.rewritten is not None:
            graph = package.rewritten.SerializeToString()
        if graph is not None:
            options.add_session_config_entry(_DATA_FOLDER, str(package.model.parent))
        if package.rewritten is not None:
            options.add_session_config_entry(*exact.LEVEL)
        with self._told("load the graph"):
            self._session = _ort.InferenceSession(
                graph or str(package.model), sess_options=options, providers=["CPUExecutionProvider"]
            )
        self._types = {i.name: _TYPES[i.type] for i in self._session.get_inputs() if i.type in _TYPES}

    def forward(
        self, ids: NDArray[np.int64], state: State | None = None, mask: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.float32], RawState]:
        """Logits ``[batch, new, vocab]`` of ``ids`` ``[batch, new]``, as any ``Decoder`` gives them.

        Raises:
            Invalid: ``runtime-failed``; ``graph-no-mask`` for padding that the graph cannot be told of;
                ``graph-no-cache`` for a second call without caches; ``graph-last-logits`` for logits of the
                last position alone; ``graph-batch`` for another number of rows than it takes; ``graph-room`` for
                more tokens than its caches hold.
        """
        batch, new = ids.shape
        before = self._start(batch) if state is None else self._resume(state, batch)
        total = before.length + new
        self._hold_room(batch, total)
        if self.ports.new == 1 < new:
            return self._one_by_one(ids, before, mask)
        mask = self._mask(mask, batch, total)
        binding = self._session.io_binding()
        with self._told(f"run {batch} x {new} tokens after {before.length}"):
            self._bind(binding, ids, mask, before)
            self._session.run_with_iobinding(binding)
            outputs = binding.get_outputs()
        logits = _fp32(outputs[0])
        if logits.shape[:2] != (batch, new):
            raise Invalid(
                "graph-last-logits",
                f"logits of shape {list(logits.shape)} for {batch} x {new} tokens: not one row a token",
                place=str(self._model),
                hint="Export the graph with the logits of every position.",
            )
        return logits, RawState(total, batch, tuple(outputs[1:]))

    def held(self, state: RawState) -> tuple[NDArray[np.float32], ...]:
        """Keys and values, in turn, by layer: ``[batch, kv_heads, tokens, head_dim]`` of the newest tokens each."""
        layers = [cache for cache in self.ports.caches for _ in ("key", "value")]
        return tuple(cache.held(_fp32(value), state.length) for cache, value in zip(layers, state.caches, strict=False))

    def _start(self, batch: int) -> RawState:
        return RawState(0, batch, tuple(_fresh(each, batch) for each in self.ports.carried))

    def _resume(self, state: State, batch: int) -> RawState:
        if not isinstance(state, RawState) or state.batch != batch:
            raise TypeError(f"{state!r} is not a state of this runtime for {batch} rows")
        if not self.ports.carried:
            raise Invalid(
                "graph-no-cache",
                "the graph has no caches, so it cannot go on from an earlier call",
                place=str(self._model),
                hint="Give it the whole sequence at once, or export it with its caches.",
            )
        return state

    def _hold_room(self, batch: int, total: int) -> None:
        rows, room = self.ports.batch, self.ports.capacity
        if rows is not None and batch != rows:
            raise Invalid(
                "graph-batch",
                f"the graph takes {rows} rows at a time, not {batch}",
                place=str(self._model),
                hint="Run each row alone.",
            )
        if room is not None and total > room:
            raise Invalid(
                "graph-room",
                f"the graph has room for {room} tokens, not for {total}",
                place=str(self._model),
                hint="Ask for fewer tokens, or export it with more room.",
            )

    def _one_by_one(
        self, ids: NDArray[np.int64], state: RawState, mask: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.float32], RawState]:
        """A graph that takes one token a call is given them one after another."""
        parts: list[NDArray[np.float32]] = []
        for place in range(ids.shape[1]):
            seen = None if mask is None else mask[:, : state.length + 1]
            logits, state = self.forward(ids[:, place : place + 1], state, seen)
            parts.append(logits)
        return np.concatenate(parts, axis=1), state

    def _mask(self, mask: NDArray[np.int64] | None, batch: int, total: int) -> NDArray[np.int64]:
        if mask is None:
            return np.ones((batch, total), np.int64)
        if mask.shape != (batch, total):
            raise ValueError(f"mask {mask.shape} for {batch} rows of {total} tokens")
        if self.ports.attention_mask is None and not mask.all():
            raise Invalid(
                "graph-no-mask",
                "the graph has no attention mask, so it cannot be told of padding",
                place=str(self._model),
                hint="Run each row alone.",
            )
        return mask

    def _bind(self, binding: Any, ids: NDArray[np.int64], mask: NDArray[np.int64], before: RawState) -> None:
        ports = self.ports
        batch, new = ids.shape
        feeds: dict[str, NDArray[Any]] = {ports.input_ids: ids}
        if ports.attention_mask is not None:
            unused = 0 if ports.mask_width is None else ports.mask_width - mask.shape[1]
            feeds[ports.attention_mask] = np.pad(mask, ((0, 0), (0, unused)))
        if ports.position_ids is not None:
            feeds[ports.position_ids] = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -new:]
        feeds |= {counter.name: counter.value(batch, before.length, new) for counter in ports.counters}
        for name, value in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value, self._types[name]))
        for each, value in zip(ports.carried, before.caches, strict=True):
            binding.bind_ortvalue_input(each.past, value)
        for name in (ports.logits, *(each.present for each in ports.carried)):
            binding.bind_output(name)

    @contextmanager
    def _told(self, doing: str) -> Generator[None]:
        try:
            yield
        except _ERRORS as error:
            raise refusal(self.runtime, doing, error, self._model) from error


_TYPES: dict[str, type[np.generic]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def _fresh(carried: Carried, batch: int) -> Any:
    """The tensor before the first token: zeros, where it has any size then."""
    element, shape = onnx.helper.np_dtype_to_tensor_dtype(carried.dtype), (batch, *carried.fresh)
    if 0 in shape:
        return _ort.OrtValue.ortvalue_from_shape_and_type(shape, element)
    if element == onnx.TensorProto.BFLOAT16:
        return _ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(shape, np.uint16), element)
    return _ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, carried.dtype))


def _fp32(value: Any) -> NDArray[np.float32]:
    """The tensor in fp32. numpy has no bf16, so those are read as the upper halves of fp32 numbers."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return np.asarray(value.numpy(), np.float32)
    shape = value.shape()
    raw = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16))
    halves = np.ctypeslib.as_array(raw, shape=shape)
    return (halves.astype(np.uint32) << 16).view(np.float32)
