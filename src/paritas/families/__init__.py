"""One module a family: configuration -> spec, and only what that family does differently.

A family is a module of this package with

* ``MODEL_TYPES``: the ``model_type`` words of config.json that it reads;
* ``read(config) -> Decoder``;
* ``TOKEN_IDS``: the configuration class's defaults of bos, eos and pad;
* ``RENAMES``: (prefix in the checkpoint, prefix in the text model), where the checkpoint's names are not those of the
  graph (``model.layers.0.self_attn.q_proj``); a ``*`` stands for a part between two dots, mostly a layer's number;
* ``DROPPED``: (pattern of tensor names, reason) of what the text model does not compute with.

A module that is here is found; there is no list to edit.
"""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol, cast

from paritas.config import Config
from paritas.errors import ParitasError, Unsupported
from paritas.spec import Attention, Decoder


class Family(Protocol):
    """What a family's module provides."""

    MODEL_TYPES: tuple[str, ...]
    TOKEN_IDS: Mapping[str, int | list[int]]
    RENAMES: tuple[tuple[str, str], ...]
    DROPPED: tuple[tuple[str, str], ...]

    def read(self, config: Config) -> Decoder:
        """The spec that ``config`` describes."""
        ...


@cache
def families() -> dict[str, Family]:
    """model_type -> family, of every module of this package."""
    found: dict[str, Family] = {}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        family = cast(Family, importlib.import_module(info.name))
        for model_type in family.MODEL_TYPES:
            if model_type in found:
                raise RuntimeError(f"two families read model_type {model_type!r}")
            found[model_type] = family
    return found


def family_of(config: Config) -> Family:
    """The family that reads ``config``.

    Raises:
        ParitasError: ``model-type-missing``.
        Unsupported: ``model-type-unsupported``, with the closest supported word.
    """
    model_type = config.optional("model_type")
    if not isinstance(model_type, str):
        raise ParitasError(
            "model-type-missing",
            "the configuration has no model_type",
            place=config.place,
            hint="Is this a transformers checkpoint?",
        )
    known = families()
    if model_type in known:
        return known[model_type]
    close = difflib.get_close_matches(model_type, known, n=1, cutoff=0.3)
    raise Unsupported(
        "model-type-unsupported",
        f"no family reads model_type {model_type!r}; supported: {', '.join(sorted(known))}",
        place=config.place,
        hint=(f"The closest supported one is {close[0]!r}. " if close else "")
        + "How to add a family: docs/how-to/add-a-model.md",
    )


def text_name(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A tensor's name in the text model, by the first of a family's ``RENAMES`` that knows it."""
    for old, new in renames:
        if found := re.match(re.escape(old).replace(r"\*", r"([^.]+)"), name):
            for part in found.groups():
                new = new.replace("*", part, 1)
            return new + name[found.end() :]
    return name


def without_keys(spec: Decoder) -> Iterator[tuple[str, str]]:
    """Rules as in ``DROPPED`` for what a checkpoint ships, and no one reads, of layers that have queries alone."""
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, Attention) and (owner := layer.mixer.keys_of) is not None:
            reason = f"the layer attends to the keys and values of layer {owner}, and has none of its own"
            for name in ("k_proj", "v_proj", "k_norm", "v_norm"):
                yield f"model.layers.{index}.self_attn.{name}.*", reason
