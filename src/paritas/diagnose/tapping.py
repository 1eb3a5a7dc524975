"""``paritas tap``: values inside a package on one prompt, as numbers on the screen and as arrays in a file."""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.taps import tap
from paritas.errors import ParitasError
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.package import Package, open_package
from paritas.runtime.ports import read_ports
from paritas.runtime.proto import load

FIRST = 8  # numbers that are shown of a value
CLOSE = 3  # names that a wrong one is answered with


@dataclass(frozen=True)
class Tapped:
    """One value.

    Attributes:
        name: in the graph.
        operator: that makes it.
        shape, dtype: of the array.
        minimum, maximum, mean, norm: of its finite numbers (norm: L2); 0 where there are none.
        bad: how many numbers are not finite.
        first: the first numbers.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    norm: float
    bad: int
    first: tuple[float, ...]


@dataclass(frozen=True)
class TapReport:
    """What ``paritas tap`` says.

    Attributes:
        package: the graph that ran.
        ids: the tokens that it was given.
        values: in the order in which they were asked for.
        optimisation: of the graph by the runtime: ``all``; ``off`` if the taps would otherwise have changed the logits.
        undisturbed: whether the logits beside the taps are those without them, bit for bit.
        out: the file with the arrays, or None.
    """

    package: Path
    ids: tuple[int, ...]
    values: tuple[Tapped, ...]
    optimisation: str
    undisturbed: bool
    out: Path | None

    def summary(self) -> dict[str, Any]:
        """What the command gives with ``--json``."""
        return {
            "package": str(self.package),
            "ids": list(self.ids),
            "optimisation": self.optimisation,
            "undisturbed": self.undisturbed,
            "out": None if self.out is None else str(self.out),
            "values": [vars(value) for value in self.values],
        }


def tap_command(
    package: str | Path,
    at: Sequence[str],
    ids: Sequence[int] | None = None,
    prompt: str | None = None,
    out: Path | None = None,
) -> TapReport:
    """Run a package on one prompt and read values inside of it.

    Args:
        package: a folder, or a graph.
        at: names of values; ``*`` and ``?`` stand for any letters and for one.
        ids: the tokens.
        prompt: or a text, which the package's tokenizer encodes, without a chat template.
        out: where the arrays are written (``.npz``), under the names of the values.

    Raises:
        ParitasError: ``tap-tokens-unclear``, ``tap-token-unknown``, ``tap-value-unknown``, ``prompt-empty``,
            ``output-unwritable``, or the package or its tokenizer cannot be read.
        Invalid: ``runtime-failed``, or the graph is no decoder.
    """
    opened = open_package(package)
    tokens = _tokens(opened, ids, prompt)
    makers = {name: node.op_type for node in load(opened.model).graph.node for name in node.output if name}
    names = list(dict.fromkeys(name for word in at for name in _found(word, makers, opened.model)))
    read = tap(opened, tokens, names)
    values = read.passes[0]
    if out is not None:
        _write(out, {name: values[name] for name in names})
    told = tuple(_told(name, makers[name], values[name]) for name in names)
    return TapReport(opened.model, tuple(tokens), told, read.settings.level, read.undisturbed, out)


def _tokens(package: Package, ids: Sequence[int] | None, prompt: str | None) -> list[int]:
    if (ids is None) == (prompt is None):
        raise ParitasError(
            "tap-tokens-unclear",
            "tokens are given twice" if prompt is not None else "no tokens are given",
            hint="Give --ids or --prompt.",
        )
    tokens = ChatTokenizer.open(package.folder).encode(prompt) if prompt is not None else list(ids or ())
    if not tokens:
        raise ParitasError("prompt-empty", "there are no tokens to run the package on", hint="Give one at least.")
    vocab = read_ports(package.model, package.head_size).vocab
    beyond = [token for token in tokens if token < 0 or (vocab is not None and token >= vocab)]
    if beyond:
        raise ParitasError(
            "tap-token-unknown",
            f"{beyond[0]} is no token: the package has {vocab}",
            place=str(package.model),
            hint=f"Give ids from 0 to {vocab - 1}." if vocab else "Give ids from 0.",
        )
    return tokens


def _found(word: str, makers: dict[str, str], model: Path) -> list[str]:
    if word in makers:
        return [word]
    if matching := fnmatch.filter(makers, word):
        return matching
    close = difflib.get_close_matches(word, makers, n=CLOSE, cutoff=0.3)
    raise ParitasError(
        "tap-value-unknown",
        f"no operator of the graph gives {word!r}",
        place=str(model),
        hint=f"The closest: {', '.join(close)}." if close else "`paritas inspect` shows inputs and outputs.",
    )


def _write(out: Path, values: dict[str, NDArray[Any]]) -> None:
    try:
        with out.open("wb") as file:
            np.savez(file, allow_pickle=False, **values)
    except OSError as error:
        raise ParitasError(
            "output-unwritable", f"cannot write: {error.strerror}", place=str(out), hint="Give another file."
        ) from error


def _told(name: str, operator: str, value: NDArray[Any]) -> Tapped:
    flat = value.reshape(-1).astype(np.float64)
    good = flat[np.isfinite(flat)]
    some = good if good.size else np.zeros(1)
    return Tapped(
        name=name,
        operator=operator,
        shape=tuple(value.shape),
        dtype=str(value.dtype),
        minimum=float(some.min()),
        maximum=float(some.max()),
        mean=float(some.mean()),
        norm=float(np.linalg.norm(some)),
        bad=int(flat.size - good.size),
        first=tuple(float(number) for number in flat[:FIRST]),
    )
