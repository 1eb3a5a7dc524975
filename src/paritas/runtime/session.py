"""Any decoder graph in a plain ONNX Runtime session on the CPU. Caches stay in the runtime between calls."""

import ctypes
import importlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.runtime import exact
from paritas.runtime.caches import Cache
from paritas.runtime.decoder import State
from paritas.runtime.faults import refusal
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.rows import ALL
from paritas.runtime.states import Carried

# ONNX Runtime has no types: the module and all that comes out of it are Any, in this file alone.
_ort: Any = importlib.import_module("onnxruntime")
_state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
_ERROR_KINDS: list[Any] = [kind for kind in _state.__dict__.values() if isinstance(kind, type)]
# Its errors share no base of their own.
_ERRORS: tuple[type[Exception], ...] = (RuntimeError, *(k for k in _ERROR_KINDS if issubclass(k, Exception)))
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
AS_STORED = ("session.disable_prepacking", "1")
"""Entry of a session that uses weights as they are stored."""

_SILENT = 4  # log severity: fatal only; what is wrong arrives as an exception


@dataclass(frozen=True)
class RawState:
    """Caches after ``length`` tokens; never written to, so two calls may go on from the same state.

    Attributes:
        caches: ``OrtValue`` s in the layout of the graph: key and value in turn, then other states.
        in_place: for each of them, whether the next call writes over it: then only the newest state is good.
        also: other outputs that were asked for, of the tokens of the last call, ``[batch, new, width]``.
    """

    length: int
    batch: int
    caches: tuple[Any, ...]
    in_place: tuple[bool, ...]
    also: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]], repr=False)


class RawSession:
    """A package's graph in ``onnxruntime.InferenceSession``; see :class:`paritas.runtime.decoder.Decoder`.

    Args:
        package: what to load.
        threads: threads within an operator; None leaves it to the runtime.
        capacity: the most tokens that one sequence will have: caches have that room from the start, and are written in
            place where the graph's attention can, as in ORT GenAI. None lets them grow, and keeps older states good.
        graph: a changed graph with the same inputs and outputs, serialised, in place of the package's; its external
            data is the package's, which is read where it lies.
        also: outputs besides logits and states that every call shall keep.
        brief: whether it is made for a few calls: weights are used as they lie in their files, not laid out anew first,
            which takes seconds and a second copy of all of them; what a call takes is given back after it.

    Raises:
        Invalid: ``runtime-failed``; or the graph is no decoder (as :func:`paritas.runtime.ports.read_ports` tells).
    """

    runtime = "onnxruntime"

    def __init__(
        self,
        package: Package,
        threads: int | None = None,
        graph: bytes | None = None,
        capacity: int | None = None,
        also: Sequence[str] = (),
        brief: bool = False,
    ) -> None:
        self.version: str = _ort.__version__
        self.ports = read_ports(package.model, package.head_size, package.rewritten)
        self._model = package.model
        self._capacity = capacity
        # What has left a window in place is lost, and with it the state before the call.
        self.goes_back = capacity is None or not any(c.in_place and c.window is not None for c in self.ports.caches)
        self._also = tuple(also)
        options = _ort.SessionOptions()
        options.log_severity_level = _SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        for entry in package.session_entries.items():
            options.add_session_config_entry(*entry)
        if brief:
            options.add_session_config_entry(*AS_STORED)
            options.enable_cpu_mem_arena = False  # which would hold as much as the largest call took, until the end
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
        self,
        ids: NDArray[np.int64],
        state: State | None = None,
        mask: NDArray[np.int64] | None = None,
        rows: int = ALL,
    ) -> tuple[NDArray[np.float32], RawState]:
        """Logits ``[batch, new, vocab]`` of ``ids`` ``[batch, new]``, as any ``Decoder`` gives them.

        Raises:
            Invalid: ``runtime-failed``; ``graph-no-mask`` for padding that the graph cannot be told of;
                ``graph-no-cache`` for a second call without caches; ``graph-last-logits`` for logits of the
                last position alone; ``graph-batch`` for another number of rows than it takes; ``graph-room`` for
                more tokens than its caches hold.
        """
        if self.ports.new == 1 < ids.shape[1]:
            return self._one_by_one(ids, self._before(state, len(ids)), mask)
        raw, after = self.advance(ids, state, mask, rows)
        logits = _fp32(raw)
        if logits.shape[:2] != ids.shape and not (self.ports.kept and logits.shape[1] == rows):
            raise Invalid(
                "graph-last-logits",
                f"logits of shape {list(logits.shape)} for {ids.shape[0]} x {ids.shape[1]} tokens: not one row a token",
                place=str(self._model),
                hint="Export the graph with the logits of every position.",
            )
        return logits, after

    def advance(
        self,
        ids: NDArray[np.int64],
        state: State | None = None,
        mask: NDArray[np.int64] | None = None,
        rows: int | None = None,
    ) -> tuple[Any, RawState]:
        """One call of the graph: the logits as they came, an ``OrtValue``, and the state after it.

        ``rows`` is of how many last positions they are wanted, :data:`ALL` or a number, where the graph can be asked;
        None leaves it to the graph.

        Raises:
            Invalid: as :meth:`forward`.
        """
        batch, new = ids.shape
        before = self._before(state, batch)
        total = before.length + new
        self._hold_room(batch, total)
        mask = self._mask(mask, batch, total)
        binding = self._session.io_binding()
        with self._told(f"run {batch} x {new} tokens after {before.length}"):
            self._bind(binding, ids, mask, before)
            if rows is not None and self.ports.kept is not None:
                wanted = _ort.OrtValue.ortvalue_from_numpy(np.array(rows, np.int64))
                binding.bind_ortvalue_input(self.ports.kept, wanted)
            self._session.run_with_iobinding(binding)
            outputs = binding.get_outputs()
        end = len(outputs) - len(self._also)
        pairs = zip(before.in_place, before.caches, outputs[1:end], strict=True)
        caches = tuple(old if over else new for over, old, new in pairs)  # the old one holds the memory of both
        also = {name: _fp32(value) for name, value in zip(self._also, outputs[end:], strict=True)}
        return outputs[0], RawState(total, batch, caches, before.in_place, also)

    def kept(self, before: State | None, after: State, ids: NDArray[np.int64], count: int) -> RawState:
        """See :meth:`paritas.runtime.decoder.Decoder.kept`: caches are cut where that can be done, else asked again."""
        assert isinstance(after, RawState)
        length = after.length - ids.shape[1] + count
        if length == after.length:
            return after
        if not self.goes_back:
            raise ValueError("a part of a call cannot be kept: its windows have gone on in place")
        if self.ports.states or any(cache.window is not None for cache in self.ports.caches):
            return self.forward(ids[:, :count], before)[1]  # what has left a window or a convolution is lost
        halves = zip(self._layers(), after.caches, after.in_place, strict=True)
        cut = tuple(
            value if over or cache.capacity is not None else _first(value, cache.axis, length)
            for cache, value, over in halves
        )
        also = {name: value[:, :count] for name, value in after.also.items()}
        return RawState(length, after.batch, cut, after.in_place, also)

    def _layers(self) -> list[Cache]:
        """The cache that each of a state's tensors is half of."""
        return [cache for cache in self.ports.caches for _ in cache.halves]

    def held(self, state: RawState) -> tuple[NDArray[np.float32], ...]:
        """Keys and values, in turn, by layer: ``[batch, kv_heads, tokens, head_dim]`` of the newest tokens each."""
        pairs = zip(self._layers(), state.caches, strict=False)
        return tuple(cache.held(_fp32(value), state.length) for cache, value in pairs)

    def _before(self, state: State | None, batch: int) -> RawState:
        return self._start(batch) if state is None else self._resume(state, batch)

    def _start(self, batch: int) -> RawState:
        over = tuple(self._capacity is not None and cache.in_place for cache in self._layers())
        rooms = [cache.with_room(self._capacity or 0) for cache in self.ports.caches]
        fresh = [half for cache in rooms for half in cache.halves]
        caches = tuple(_fresh(each, batch) for each in (*fresh, *self.ports.states))
        return RawState(0, batch, caches, (*over, *(False for _ in self.ports.states)))

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
        rows = self.ports.batch
        room = min((each for each in (self.ports.capacity, self._capacity) if each is not None), default=None)
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
        binding.bind_output(ports.logits)
        for each, value, over in zip(ports.carried, before.caches, before.in_place, strict=True):
            binding.bind_ortvalue_input(each.past, value)
            if over:
                binding.bind_ortvalue_output(each.present, value)
            else:
                binding.bind_output(each.present)
        for name in self._also:
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


def _first(value: Any, axis: int, length: int) -> Any:
    """The first ``length`` along an axis. A cache of integers or of fp16 is cut as what it is."""
    if value.shape()[axis] == length:
        return value
    raw = np.ascontiguousarray(np.moveaxis(np.moveaxis(_raw(value), axis, 0)[:length], 0, axis))
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        return _ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx.TensorProto.BFLOAT16)
    return _ort.OrtValue.ortvalue_from_numpy(raw)


def _raw(value: Any) -> NDArray[Any]:
    """The tensor as it is; bf16, which numpy lacks, as its bits."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return value.numpy()
    raw = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16))
    return np.ctypeslib.as_array(raw, shape=value.shape())


def _fp32(value: Any) -> NDArray[np.float32]:
    """The tensor in fp32; bf16 is the upper half of it."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return np.asarray(value.numpy(), np.float32)
    return (_raw(value).astype(np.uint32) << 16).view(np.float32)
