"""A drafter of a package's own: a second, small graph that guesses with the keys and values that the first has cached.

The package says in ``assistant/drafter.json`` what of the target goes where. Only a plain ONNX Runtime session shows a
target's keys and values, so ORT GenAI cannot be drafted for.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.errors import ParitasError
from paritas.runtime import external
from paritas.runtime.decoder import State
from paritas.runtime.drafting import MOST
from paritas.runtime.held import read_held
from paritas.runtime.package import Package, read_object
from paritas.runtime.proto import load
from paritas.runtime.session import RawSession, RawState

FOLDER = "assistant"
PAIRING = "drafter.json"
GRAPH = "model.onnx"
Row = NDArray[np.float32]


@dataclass(frozen=True)
class Pairing:
    """What of a target goes into its drafter.

    Attributes:
        hidden: the target's output whose last row seeds the drafter.
        embedding: the target's initializer, of floats or of integers; the drafter is given the last token's row.
        scale: multiplies that row.
        borrowed: input of the drafter -> output of the target.
        width: guesses at a time.
    """

    hidden: str
    embedding: str
    scale: float
    borrowed: Mapping[str, str]
    width: int


def read_pairing(folder: Path) -> Pairing | None:
    """The pairing that a package has; None if it has no drafter.

    Raises:
        ParitasError: ``package-config-broken``, ``drafter-incomplete``.
    """
    file = folder / FOLDER / PAIRING
    if not file.is_file():
        return None
    values = read_object(file)
    try:
        return Pairing(
            hidden=str(values["hidden"]),
            embedding=str(values["embedding"]),
            scale=float(values["scale"]),
            borrowed={str(to): str(of) for to, of in values["borrowed"].items()},
            width=int(values["width"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParitasError(
            "drafter-incomplete",
            f"what pairs the drafter with its target is not whole: {error}",
            place=str(file),
            hint="Export the pair again: paritas export TARGET OUT --drafter CHECKPOINT",
        ) from error


class Assistant:
    """A package's own drafter; see :class:`paritas.runtime.drafting.Drafter`.

    Args:
        package: the target.
        pairing: how the two belong together.
        target: the target's session, which keeps ``pairing.hidden`` of every call.
        threads: threads within an operator; None leaves it to the runtime.

    Raises:
        ParitasError: the drafter's files are missing or broken.
        Invalid: ``runtime-failed``.
    """

    def __init__(self, package: Package, pairing: Pairing, target: RawSession, threads: int | None = None) -> None:
        self.pairing = pairing
        self.width = pairing.width
        self._target, self._package = target, package
        self._graph = package.folder / FOLDER / GRAPH
        external.check(load(self._graph), self._graph.parent)
        self._session = _session(self._graph, threads)
        presents = [each.present for each in target.ports.carried]
        self._places = {name: presents.index(present) for name, present in pairing.borrowed.items()}

    def draft(self, tokens: Sequence[int], state: State, room: int) -> list[int]:
        """The best token, and the best after it, and so on; every guess is made at the last token's position."""
        if not isinstance(state, RawState):
            raise TypeError(f"{state!r} is not a state of the target's session")
        borrowed = {name: state.caches[place] for name, place in self._places.items()}
        carry, token, guesses = state.also[self.pairing.hidden][:, -1:], tokens[-1], list[int]()
        for _ in range(min(self.width, room)):
            logits, carry = self.step(token, carry, len(tokens) - 1, borrowed)
            token = int(logits[0, -1].argmax())
            guesses.append(token)
        return guesses

    def learn(self, drafted: int, accepted: int) -> None:
        """One more after a whole guess that was right, one fewer than were right after another one, at least one."""
        self.width = min(self.width + 1, MOST) if accepted == drafted else max(1, accepted + 1)

    def step(self, token: int, carry: Row, position: int, borrowed: Mapping[str, Any]) -> tuple[Row, Row]:
        """One call of the drafter.

        Args:
            token: the last one.
            carry: ``[1, 1, target_hidden]``.
            position: of the token that is guessed from.
            borrowed: input -> ``OrtValue`` [1, kv_heads, length, head_dim].

        Returns:
            Logits ``[1, 1, vocab]`` and the next carry.
        """
        binding = self._session.io_binding()
        embeds = np.concatenate([self.embedded(token), carry], axis=-1)
        binding.bind_cpu_input("inputs_embeds", np.ascontiguousarray(embeds, np.float32))
        binding.bind_cpu_input("position_ids", np.array([[position]], np.int64))
        for name, value in borrowed.items():
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", "last_hidden_state"):
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        logits, after = binding.copy_outputs_to_cpu()
        return logits, after

    def embedded(self, token: int) -> Row:
        """The target's embedding of a token, scaled, ``[1, 1, target_hidden]``."""
        row = self._rows(token, token + 1)
        return (row * np.float32(self.pairing.scale)).reshape(1, 1, -1)

    @cached_property
    def _rows(self) -> Callable[[int, int], Row]:
        """Reads rows of the target's embedding, dequantised if it is stored as integers."""
        name, held = self.pairing.embedding, read_held(self._package.proto, self._package.model.parent)
        if (table := held.quantized.get(name)) is not None:
            return lambda start, stop: table.read(start, stop)[0]
        found = next((each.stored for each in held.floats if each.stored.name == name), None)
        if found is None:
            raise ParitasError(
                "drafter-incomplete",
                f"the target has no initializer {name}",
                place=str(self._graph.with_name(PAIRING)),
                hint="Export the pair again: paritas export TARGET OUT --drafter CHECKPOINT",
            )
        return found.rows


def _session(graph: Path, threads: int | None) -> Any:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    return ort.InferenceSession(str(graph), sess_options=options, providers=["CPUExecutionProvider"])


def replay(package: Package, calls: Sequence[tuple[Row, int, Mapping[str, Row]]]) -> tuple[Row, Row]:
    """A package's drafter alone, on calls that are given whole: embeddings, position, keys and values by input.

    Returns:
        Logits ``[calls, vocab]`` and carries ``[calls, target_hidden]``.
    """
    graph = package.folder / FOLDER / GRAPH
    external.check(load(graph), graph.parent)
    session = _session(graph, None)
    taken = {each.name for each in session.get_inputs()}
    answers: list[tuple[Row, Row]] = []
    for embeds, position, borrowed in calls:
        feeds = {"inputs_embeds": embeds, "position_ids": np.array([[position]], np.int64), **borrowed}
        used = {name: value for name, value in feeds.items() if name in taken}
        logits, carry = session.run(["logits", "last_hidden_state"], used)
        answers.append((logits[0, 0], carry[0, 0]))
    return np.stack([logits for logits, _ in answers]), np.stack([carry for _, carry in answers])
