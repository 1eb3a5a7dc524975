"""A package in ONNX Runtime GenAI, on the CPU, one row at a time. Imported when it is first asked for."""

import importlib
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid, ParitasError
from paritas.runtime import exact
from paritas.runtime.decoder import State
from paritas.runtime.faults import refusal
from paritas.runtime.package import CONFIG, Package
from paritas.runtime.ports import read_ports
from paritas.runtime.rows import ALL, giving_all

# The runtime's own generation defaults would bend the logits or the choice: nothing of them is left.
_NEUTRAL = {"do_sample": False, "repetition_penalty": 1.0, "top_k": 1, "temperature": 1.0, "min_length": 0}
_LIBRARY_KEYS = frozenset({"custom_ops_library", "library_path"})
_SILENT = 4  # log severity: fatal only; what is wrong arrives as an exception


@dataclass
class GenAIState:
    """A generator of the runtime. It moves on with every call, so only its newest state can be gone on from.

    Attributes:
        length: number of tokens it has seen.
        generator: ``onnxruntime_genai.Generator``.
    """

    length: int
    generator: Any = field(repr=False)


class GenAISession:
    """A package in ``onnxruntime_genai``; see :class:`paritas.runtime.decoder.Decoder`.

    Args:
        package: what to load; it needs its genai_config.json.
        capacity: the most tokens that one sequence will have; None stands for the package's context length,
            whose caches some packages allocate at once. A windowed package gets its window at least.
        threads: threads within an operator; None leaves it to the runtime.
        as_it_is: a graph that can be asked for the logits of all positions is left at its default. The runtime cannot
            ask it, so :meth:`forward`, which needs them, has the default changed in memory.

    Raises:
        ParitasError: ``genai-missing`` if onnxruntime-genai is not installed, ``genai-config-missing``,
            ``genai-config-incomplete``, ``package-native-code`` if the package names a library to be loaded.
        Invalid: ``genai-context`` if ``capacity`` is beyond the context length; ``runtime-failed``; or no
            decoder (as :func:`paritas.runtime.ports.read_ports` tells).
    """

    runtime = "onnxruntime-genai"

    def __init__(
        self, package: Package, capacity: int | None = None, threads: int | None = None, *, as_it_is: bool = False
    ) -> None:
        self._genai = _import()
        _refuse_native_code(package.genai_config, package.folder)
        self.version: str = self._genai.__version__
        self._folder = package.folder
        ports = read_ports(package.model, package.head_size, package.rewritten)
        self._logits = ports.logits
        # What has left a window or a convolution, the runtime cannot bring back.
        self.goes_back = not ports.states and all(cache.window is None for cache in ports.caches)
        self._max_length = _max_length(package, capacity)
        session: dict[str, int | str] = {"log_severity_level": _SILENT}
        if threads is not None:
            session["intra_op_num_threads"] = threads
        if package.rewritten is not None:
            session |= dict([exact.LEVEL])
        overlay = {
            "model": {"decoder": {"session_options": session}},
            # A chunked prefill would leave the logits of its last chunk alone.
            "search": {"max_length": self._max_length, "chunk_size": 0},
        }
        with self._told("load the package"):
            config = self._genai.Config(str(package.folder))
            config.clear_providers()
            config.overlay(json.dumps(overlay))
            changed = package.rewritten
            if ports.kept is not None and not as_it_is:
                changed = giving_all(package.proto, ports.kept, ports.logits)
            if changed is not None:
                # The runtime reads these bytes when it makes the model: they have to live until then.
                graph = changed.SerializeToString()
                config.add_model_data(package.model.relative_to(package.folder).as_posix(), graph)
            self._model = self._genai.Model(config)

    def forward(
        self,
        ids: NDArray[np.int64],
        state: State | None = None,
        mask: NDArray[np.int64] | None = None,
        rows: int = ALL,
    ) -> tuple[NDArray[np.float32], GenAIState]:
        """Logits ``[1, new, vocab]`` of ``ids`` ``[1, new]``, as any ``Decoder`` gives them.

        Raises:
            Invalid: ``genai-batch`` for several rows or padding; ``genai-context`` beyond the capacity;
                ``runtime-failed``; ``graph-last-logits``.
        """
        del rows  # the runtime cannot ask the graph for some
        batch, new = ids.shape
        if batch != 1 or (mask is not None and not mask.all()):
            raise Invalid(
                "genai-batch",
                f"ORT GenAI is asked for one row without padding, not for {batch} rows or a padded one",
                place=str(self._folder),
                hint="Give a batch to onnxruntime.",
            )
        current = self._start() if state is None else _resume(state)
        if current.length + new > self._max_length:
            raise Invalid(
                "genai-context",
                f"{new} tokens after {current.length} are more than the {self._max_length} there is room for",
                place=str(self._folder),
                hint="Ask for a larger capacity, up to the package's context length.",
            )
        after = self.advance(ids, current)
        with self._told("hand over the logits"):
            logits = np.array(after.generator.get_output(self._logits), np.float32)
        if logits.shape[:2] != (1, new):
            raise Invalid(
                "graph-last-logits",
                f"logits of shape {list(logits.shape)} for 1 x {new} tokens: not one row a token",
                place=str(self._folder),
                hint="Export the graph with the logits of every position.",
            )
        return logits, after

    def advance(self, ids: NDArray[np.int64], state: State | None = None) -> GenAIState:
        """Run ``ids`` ``[1, new]``, and leave the logits where they are.

        Raises:
            Invalid: ``runtime-failed``.
        """
        current = self._start() if state is None else _resume(state)
        new = ids.shape[1]
        with self._told(f"run {new} tokens after {current.length}"):
            current.generator.append_tokens(ids.astype(np.int32))
        return GenAIState(current.length + new, current.generator)

    def kept(self, before: State | None, after: State, ids: NDArray[np.int64], count: int) -> GenAIState:
        """See :meth:`paritas.runtime.decoder.Decoder.kept`; the generator is set back.

        Raises:
            Invalid: ``runtime-failed``.
        """
        del before  # the generator has gone on from it
        current = _resume(after)
        length = current.length - ids.shape[1] + count
        if length < current.length:
            with self._told(f"go back to {length} tokens"):
                current.generator.rewind_to(length)
        return GenAIState(length, current.generator)

    def _start(self) -> GenAIState:
        with self._told("make a generator"):
            params = self._genai.GeneratorParams(self._model)
            params.set_search_options(max_length=self._max_length, **_NEUTRAL)
            return GenAIState(0, self._genai.Generator(self._model, params))

    @contextmanager
    def _told(self, doing: str) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            raise refusal(self.runtime, doing, error, self._folder) from error


def _resume(state: State) -> GenAIState:
    if not isinstance(state, GenAIState):
        raise TypeError(f"{state!r} is not a state of this runtime")
    if state.length != state.generator.token_count():
        raise ValueError(f"state after {state.length} tokens: its generator has gone on already")
    return state


def _refuse_native_code(values: Any, folder: Path) -> None:
    """The runtime loads what its configuration names, wherever it lies: a package to be judged must not run code."""
    children: Iterable[Any] = ()
    if isinstance(values, dict):
        named = cast(dict[str, Any], values)
        if wanted := _LIBRARY_KEYS & named.keys():
            raise ParitasError(
                "package-native-code",
                f"the package has native code loaded through {', '.join(sorted(wanted))}",
                place=str(folder / CONFIG),
                hint="Remove the key, or run the graph in onnxruntime.",
            )
        children = named.values()
    elif isinstance(values, list):
        children = cast(list[Any], values)
    for child in children:
        _refuse_native_code(child, folder)


def _import() -> Any:
    try:
        return importlib.import_module("onnxruntime_genai")
    except ModuleNotFoundError as error:
        raise ParitasError(
            "genai-missing",
            "onnxruntime-genai is not installed",
            hint="Install the extra 'genai' of Paritas: pip install onnxruntime-genai",
        ) from error


def _max_length(package: Package, capacity: int | None) -> int:
    config = package.genai_config
    if config is None:
        raise ParitasError(
            "genai-config-missing",
            f"ORT GenAI needs a {CONFIG} that names this graph",
            place=str(package.folder),
            hint="Run the graph in onnxruntime, or export the package again.",
        )
    model: Mapping[str, Any] = config["model"]
    context = model.get("context_length")
    if not isinstance(context, int):
        raise ParitasError(
            "genai-config-incomplete",
            f"context_length is {context!r}",
            place=f"{package.folder / CONFIG}: model.context_length",
            hint="Write the number of positions the model was made for.",
        )
    if capacity is not None and capacity > context:
        raise Invalid(
            "genai-context",
            f"{capacity} tokens asked for, the context has {context}",
            place=f"{package.folder / CONFIG}: model.context_length",
            hint="Ask for fewer tokens.",
        )
    # Smaller than its window, the runtime refuses a windowed cache.
    window: int = model.get("decoder", {}).get("sliding_window", {}).get("window_size", 0)
    return min(context, max(context if capacity is None else capacity, window))
