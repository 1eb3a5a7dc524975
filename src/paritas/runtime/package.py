"""A package on disk: a folder with a graph, its data and, if it has one, the configuration of ORT GenAI."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import onnx

from paritas.errors import ParitasError, Unsupported
from paritas.runtime import external
from paritas.runtime.proto import load

CONFIG = "genai_config.json"
DEEPER = "onnx"
"""Folder of the graphs in a package of transformers.js; the tokenizer's files lie above it."""
ENTRIES = ("session.disable_prepacking",)
"""Session options of a package that every runtime is given: of speed alone; none of them names a file."""
USUAL = ("model.onnx", "decoder_model_merged.onnx")
"""Names of a whole decoder beside its own parts and its variants of other precision."""


@dataclass(frozen=True)
class Package:
    """A package whose files have been found and measured; nothing is loaded.

    Attributes:
        folder: where its files lie.
        model: the graph of its decoder, in the folder or in its ``onnx/`` as transformers.js has it; its data
            lie beside it.
        genai_config: the values of genai_config.json; None if there is none, or it speaks of another graph.
        rewritten: a graph that sessions are given in place of the file's; its external data is the package's, read
            where it lies. None for the package as it is.
    """

    folder: Path
    model: Path
    genai_config: Mapping[str, Any] | None
    rewritten: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @property
    def proto(self) -> onnx.ModelProto:
        """The graph that sessions run; external data is not opened.

        Raises:
            ParitasError: ``package-model-broken``.
        """
        return load(self.model) if self.rewritten is None else self.rewritten

    @property
    def context(self) -> int | None:
        """Tokens that it says it covers; None if it does not say."""
        context = None if self.genai_config is None else self.genai_config["model"].get("context_length")
        return context if isinstance(context, int) and context > 0 else None

    @property
    def head_size(self) -> int | None:
        """Width of a head as it says it, for a graph that leaves it open; None if it does not say."""
        decoder: Any = None if self.genai_config is None else self.genai_config["model"].get("decoder")
        size: Any = cast(dict[str, Any], decoder).get("head_size") if isinstance(decoder, dict) else None
        return size if isinstance(size, int) and size > 0 else None

    @property
    def session_entries(self) -> Mapping[str, str]:
        """Entries of :data:`ENTRIES` that it wants a session to have."""
        decoder: Any = {} if self.genai_config is None else self.genai_config["model"].get("decoder")
        options: Any = cast(dict[str, Any], decoder).get("session_options") if isinstance(decoder, dict) else None
        given = cast(dict[str, Any], options) if isinstance(options, dict) else {}
        return {key: str(given[key]) for key in ENTRIES if key in given}

    @property
    def data(self) -> tuple[Path, ...]:
        """The external data files that the graph names, each of them there and long enough."""
        return external.check(load(self.model), self.model.parent)


def open_package(path: str | Path) -> Package:
    """The package at ``path``: a folder, or the graph itself (``.onnx``).

    Raises:
        ParitasError: ``package-missing``, ``package-config-broken``, ``package-model-missing``,
            ``package-model-ambiguous``, ``package-model-broken``, ``package-data-missing``,
            ``package-data-truncated``, ``package-data-hostile``.
        Unsupported: ``package-pipeline`` if its decoder is split over several graphs.
    """
    path = Path(path)
    if not path.exists():
        raise ParitasError("package-missing", "no such file or folder", place=str(path), hint="Check the path.")
    package = _of_folder(path) if path.is_dir() else _of_graph(path)
    external.check(load(package.model), package.model.parent)
    return package


def _of_folder(folder: Path) -> Package:
    config = _read_config(folder)
    name = None if config is None else _decoder_file(config, folder / CONFIG)
    return Package(folder, _find_model(folder) if name is None else _named_model(folder, name), config)


def _of_graph(model: Path) -> Package:
    if model.suffix != ".onnx":
        raise ParitasError(
            "package-missing",
            "neither a folder nor an .onnx file",
            place=str(model),
            hint="Give the folder of the package, or its graph.",
        )
    folder = model.parent
    config = _read_config(folder)
    if config is not None and (_decoder_file(config, folder / CONFIG) or model.name) != model.name:
        config = None
    return Package(folder, model, config)


def read_object(file: Path) -> dict[str, Any]:
    """The values of a JSON file; empty if there is no such file.

    Raises:
        ParitasError: ``package-config-broken`` if it cannot be read or is no object.
    """
    try:
        values = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise _broken(file, f"it is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise _broken(file, "it is not a JSON object")
    return cast(dict[str, Any], values)


def _read_config(folder: Path) -> Mapping[str, Any] | None:
    config = read_object(folder / CONFIG)
    if config and not isinstance(config.get("model"), dict):
        raise _broken(folder / CONFIG, "it has no object 'model'")
    return config or None


def _decoder_file(config: Mapping[str, Any], place: Path) -> str | None:
    decoder = config["model"].get("decoder", {})
    if not isinstance(decoder, dict):
        raise _broken(place, "model.decoder is not an object")
    decoder = cast(dict[str, Any], decoder)
    if decoder.get("pipeline"):
        raise Unsupported(
            "package-pipeline",
            "the decoder is split over several graphs",
            place=f"{place}: model.decoder.pipeline",
            hint="Give the .onnx file of one of them.",
        )
    name = decoder.get("filename")
    if name is not None and not isinstance(name, str):
        raise _broken(place, "model.decoder.filename is not a text")
    return name


def _named_model(folder: Path, name: str) -> Path:
    model = external.inside(folder, name)
    if not model.is_file():
        raise ParitasError(
            "package-model-missing",
            f"{CONFIG} names {name!r}, which is not there",
            place=str(model),
            hint=f"Copy the graph into the folder, or correct model.decoder.filename in {CONFIG}.",
        )
    return model


def _find_model(folder: Path) -> Path:
    for place in (folder, folder / DEEPER):
        if (found := _only_model(place)) is not None:
            return found
    deeper = sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*.onnx"))
    raise ParitasError(
        "package-model-missing",
        "no .onnx file" + (f"; there are graphs one folder down: {', '.join(deeper)}" if deeper else ""),
        place=str(folder),
        hint="Give the path of one of them." if deeper else "Give the folder that holds model.onnx.",
    )


def _only_model(folder: Path) -> Path | None:
    """The graph of usual name in the folder, or its only one; None if it has none."""
    for name in USUAL:
        if external.inside(folder, name).is_file():
            return folder / name
    found = sorted(p for p in folder.glob("*.onnx") if p.is_file())
    if len(found) < 2:
        return found[0] if found else None
    names = ", ".join(p.name for p in found)
    raise ParitasError(
        "package-model-ambiguous",
        f"{len(found)} graphs and no {CONFIG} that names one: {names}",
        place=str(folder),
        hint="Give the path of one of them.",
    )


def _broken(place: Path, why: str) -> ParitasError:
    return ParitasError(
        "package-config-broken", why, place=str(place), hint="Copy it again, or export the package again."
    )
