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
from paritas.runtime.decoder import State
from paritas.runtime.faults import refusal
from paritas.runtime.package import Package
from paritas.runtime.ports import Cache, read_ports
from paritas.runtime.proto import load, nodes

# ONNX Runtime has no types: the module and all that comes out of it are Any, in this file alone.
_ort: Any = importlib.import_module("onnxruntime")
_state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
_ERROR_KINDS: list[Any] = [kind for kind in _state.__dict__.values() if isinstance(kind, type)]
# Its errors share no base of their own.
_ERRORS: tuple[type[Exception], ...] = (RuntimeError, *(k for k in _ERROR_KINDS if issubclass(k, Exception)))
_SILENT = 4  # log severity: fatal only; what is wrong arrives as an exception


@dataclass(frozen=True)
class RawState:
    """Caches after ``length`` tokens; never written to, so two calls may go on from the same state.

    Attributes:
        caches: ``OrtValue`` ``[batch, kv_heads, length, head_dim]``, key and value in turn.
    """

    length: int
    batch: int
    caches: tuple[Any, ...]


class RawSession:
    """A package's graph in ``onnxruntime.InferenceSession``; see :class:`paritas.runtime.decoder.Decoder`.

    Args:
        package: what to load.
        threads: threads within an operator; None leaves it to the runtime.

    Raises:
        Invalid: ``graph-window-cache``; ``runtime-failed``; or the graph is no decoder (as
            :func:`paritas.runtime.ports.read_ports` tells).
    """

    runtime = "onnxruntime"

    def __init__(self, package: Package, threads: int | None = None) -> None:
        self.version: str = _ort.__version__
        self.ports = read_ports(package.model)
        self._model = package.model
        self._refuse_window_cache()
        options = _ort.SessionOptions()
        options.log_severity_level = _SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        with self._told("load the graph"):
            self._session = _ort.InferenceSession(
                str(package.model), sess_options=options, providers=["CPUExecutionProvider"]
            )
        self._integer = {i.name: _INTEGER[i.type] for i in self._session.get_inputs() if i.type in _INTEGER}

    def forward(
        self, ids: NDArray[np.int64], state: State | None = None, mask: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.float32], RawState]:
        """Logits ``[batch, new, vocab]`` of ``ids`` ``[batch, new]``, as any ``Decoder`` gives them.

        Raises:
            Invalid: ``runtime-failed``; ``graph-no-mask`` for padding that the graph cannot be told of;
                ``graph-no-cache`` for a second call without caches; ``graph-last-logits`` for logits of the
                last position alone.
        """
        before = self._start(len(ids)) if state is None else self._resume(state, len(ids))
        batch, new = ids.shape
        total = before.length + new
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

    def _refuse_window_cache(self) -> None:
        attributes = (a for node in nodes(load(self._model)) for a in node.attribute)
        if any(a.name == "sliding_window_cache" and a.i for a in attributes):
            raise Invalid(
                "graph-window-cache",
                "its attention overwrites caches of a fixed length, which a plain session does not keep yet",
                place=str(self._model),
                hint="Run it in ONNX Runtime GenAI.",
            )

    def _start(self, batch: int) -> RawState:
        empty = [_empty(cache, batch) for cache in self.ports.caches for _ in ("key", "value")]
        return RawState(0, batch, tuple(empty))

    def _resume(self, state: State, batch: int) -> RawState:
        if not isinstance(state, RawState) or state.batch != batch:
            raise TypeError(f"{state!r} is not a state of this runtime for {batch} rows")
        if not self.ports.caches:
            raise Invalid(
                "graph-no-cache",
                "the graph has no caches, so it cannot go on from an earlier call",
                place=str(self._model),
                hint="Give it the whole sequence at once, or export it with its caches.",
            )
        return state

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
        feeds = {ports.input_ids: ids}
        if ports.attention_mask is not None:
            feeds[ports.attention_mask] = mask
        if ports.position_ids is not None:
            feeds[ports.position_ids] = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        for name, value in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value, self._integer[name]))
        pasts = [name for cache in ports.caches for name in (cache.past_key, cache.past_value)]
        for name, value in zip(pasts, before.caches, strict=True):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(ports.logits)
        for cache in ports.caches:
            binding.bind_output(cache.present_key)
            binding.bind_output(cache.present_value)

    @contextmanager
    def _told(self, doing: str) -> Generator[None]:
        try:
            yield
        except _ERRORS as error:
            raise refusal(self.runtime, doing, error, self._model) from error


_INTEGER: dict[str, type[np.integer[Any]]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def _empty(cache: Cache, batch: int) -> Any:
    element = onnx.helper.np_dtype_to_tensor_dtype(cache.dtype)
    return _ort.OrtValue.ortvalue_from_shape_and_type([batch, cache.kv_heads, 0, cache.head_dim], element)


def _fp32(value: Any) -> NDArray[np.float32]:
    """The tensor in fp32. numpy has no bf16, so those are read as the upper halves of fp32 numbers."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return np.asarray(value.numpy(), np.float32)
    shape = value.shape()
    raw = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16))
    halves = np.ctypeslib.as_array(raw, shape=shape)
    return (halves.astype(np.uint32) << 16).view(np.float32)
