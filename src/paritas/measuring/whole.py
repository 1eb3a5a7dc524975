"""A package of fp32 that is written for a while, and asked a bundled text and two questions."""

import importlib
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.package.data import write_data
from paritas.package.model import DATA, MODEL, write_model
from paritas.plan import Plan
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.rows import giving_all, read_kept
from paritas.verify.prompts import LONG_TEXT, PROMPTS
from paritas.verify.text import RandomIds

POSITIONS = 256
"""Of text that a measurement runs on, at the most, for each of its texts."""
_FOLDER = "measured"


@contextmanager
def written(plan: Plan, folder: Path) -> Generator[Path]:
    """The package of a plan of fp32, in a folder of its own within ``folder``, as long as it is needed."""
    home = folder / _FOLDER
    home.mkdir()
    try:
        placed, _ = write_data(home / DATA, plan.graph.weights, lambda _: None)
        write_model(home, plan.graph, placed, {})
        for name, content in plan.files.items():
            (home / name).write_bytes(content)
        yield home
    finally:
        shutil.rmtree(home)


class Asked:
    """A session of the graph as it was changed, and the texts that it is asked.

    Args:
        home: folder of the package.
        plan: whose package it is.
        change: changes the graph before it is loaded.
    """

    def __init__(self, home: Path, plan: Plan, change: Callable[[onnx.ModelProto], None]) -> None:
        model = onnx.ModelProto.FromString((home / MODEL).read_bytes())
        change(model)
        if (kept := read_kept(model)) is not None:
            model = giving_all(model, kept, "logits")
        self._session = _session(home, model)
        self.texts = texts(home, plan.spec.vocab, min(POSITIONS, plan.context))

    @property
    def positions(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.texts))

    def run(self, ids: Sequence[int], outputs: Sequence[str], given: Mapping[str, Any] | None = None) -> list[Any]:
        """Outputs of one pass over ``ids`` with empty caches; ``given`` are further inputs."""
        own = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
        feeds: dict[str, Any] = {**own, **(given or {})}
        for value in self._session.get_inputs():
            if value.name not in own:
                shape = [size if isinstance(size, int) else int(size == "batch") for size in value.shape]
                feeds[value.name] = np.zeros(shape, np.float32)
        return list(self._session.run(list(outputs), feeds))

    def logits(self, ids: Sequence[int], given: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """[positions, vocab]."""
        return np.asarray(self.run(ids, ["logits"], given)[0])[0]


def texts(folder: Path, vocab: int, most: int) -> list[Sequence[int]]:
    """The bundled text and two questions, up to ``most`` tokens each; random ids if the package has no tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        return [RandomIds(vocab).running(most)]
    tokenizer = ChatTokenizer.open(folder)
    found = [tokenizer.encode(text) for text in (LONG_TEXT, *PROMPTS[:1], *PROMPTS[-1:])]
    return [[token for token in ids[:most] if token < vocab] for ids in found]


def _session(home: Path, model: onnx.ModelProto) -> Any:
    """Its own data file gives the weights."""
    ort: Any = importlib.import_module("onnxruntime")  # without type stubs
    graph = home / "measured.onnx"
    graph.write_bytes(model.SerializeToString())
    options = ort.SessionOptions()
    options.log_severity_level = 4  # a matrix that is an input cannot be folded: that is meant
    try:
        return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    finally:
        graph.unlink()
