"""The process that measures: ``python -m paritas.bench.worker KIND PATH TASK``, figures as JSON on stdout."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paritas.bench.task import Figures, Task
from paritas.bench.timing import Runner, measure
from paritas.errors import ParitasError
from paritas.runtime.package import Package, open_package


class _OnnxRuntime:
    """A package in a plain session, its caches in place where the graph allows it."""

    def __init__(self, package: Package, task: Task) -> None:
        from paritas.runtime.session import RawSession

        self._session = RawSession(package, threads=task.threads, capacity=task.longest)

    def start(self, tokens: int) -> Any:
        return self._session.advance(_ids(tokens))[1]

    def step(self, state: Any) -> Any:
        return self._session.advance(_ids(1), state)[1]


class _GenAI:
    """A package in ORT GenAI."""

    def __init__(self, package: Package, task: Task) -> None:
        from paritas.runtime.genai import GenAISession

        self._session = GenAISession(package, capacity=task.longest, threads=task.threads, as_it_is=True)

    def start(self, tokens: int) -> Any:
        return self._session.advance(_ids(tokens))

    def step(self, state: Any) -> Any:
        return self._session.advance(_ids(1), state)


class _Transformers:
    """A checkpoint in transformers: fp32, SDPA, logits of the last position, a growing cache."""

    def __init__(self, checkpoint: Any, task: Task) -> None:
        from paritas.verify.loading import load_reference, require_torch

        self._torch, _ = require_torch()
        self._torch.set_num_threads(task.threads)
        self._model, _ = load_reference(checkpoint)
        self._model.set_attn_implementation("sdpa")

    def start(self, tokens: int) -> Any:
        return self._call(tokens, None)

    def step(self, state: Any) -> Any:
        return self._call(1, state)

    def _call(self, tokens: int, cache: Any) -> Any:
        ids = self._torch.from_numpy(_ids(tokens))
        with self._torch.inference_mode():
            told = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return told.past_key_values


def main(kind: str, path: str, words: str) -> None:
    """Measure, and print."""
    task = Task(**json.loads(words))
    try:
        figures: Any = _of_checkpoint(path, task) if kind == "transformers" else _of_package(path, task)
    except ParitasError as error:
        told = {"code": error.code, "fact": error.fact, "place": error.place, "hint": error.hint}
        figures = {"error": {**told, "exit": int(error.exit_code)}}
    sys.stdout.write(json.dumps(figures) + "\n")


def _of_package(path: str, task: Task) -> Figures:
    package = open_package(path)
    runner: type[Runner] = _GenAI if task.runtime == "genai" else _OnnxRuntime
    disk = sum(file.stat().st_size for file in (package.model, *package.data))
    load: Any = runner
    return measure(lambda given: load(package, given), task.within(package.context), disk)


def _of_checkpoint(path: str, task: Task) -> Figures:
    from paritas.checkpoint import open_checkpoint
    from paritas.verify.loading import require_torch

    require_torch()  # not part of what loading costs, as ONNX Runtime's own import is not
    checkpoint = open_checkpoint(path)
    context: Any = checkpoint.config.get("max_position_embeddings")
    disk = sum(Path(place).stat().st_size for place in {tensor.place for tensor in checkpoint.tensors.values()})
    return measure(lambda given: _Transformers(checkpoint, given), task.within(context), disk)


def _ids(tokens: int) -> Any:
    """Token ids; which ones is no matter of speed. Every vocabulary has so many."""
    return (np.arange(tokens, dtype=np.int64) * 7 % 97 + 3)[np.newaxis]


if __name__ == "__main__":
    main(*sys.argv[1:])
