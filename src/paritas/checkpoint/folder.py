"""A checkpoint folder as transformers saves it: config.json, safetensors, tokenizer, generation defaults."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from paritas.checkpoint.base import Checkpoint, Tensor
from paritas.checkpoint.safetensors import read_safetensors
from paritas.errors import ParitasError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*.safetensors"
ADAPTER = "adapter_config.json"
_BASE = "An adapter is no model: give its base model, and this folder as --adapter."
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


def open_folder(folder: Path) -> Checkpoint:
    """Open a checkpoint folder; reads JSON files and tensor headers, no weights.

    Raises:
        ParitasError: ``config-missing``, ``json-corrupt``, ``weights-missing``, ``shard-*``, ``index-*``.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ParitasError(
            "config-missing", "the folder has no config.json", place=str(folder), hint=_instead_of_config(folder)
        )
    generation = folder / "generation_config.json"
    return Checkpoint(
        path=folder,
        name=folder.resolve().name,
        config=read_json(config),
        config_place=str(config),
        tensors=_tensors(folder),
        generation=read_json(generation) if generation.is_file() else {},
        tokenizer_files=tokenizer_files(folder),
    )


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Name -> content of the tokenizer files that are there."""
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object out of a file.

    Raises:
        ParitasError: ``json-corrupt``, with line and column.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ParitasError(
            "json-corrupt", f"not JSON: {error}", place=str(path), hint="Repair it or fetch it again."
        ) from None
    if not isinstance(values, dict):
        raise ParitasError("json-corrupt", "not a JSON object", place=str(path), hint="Repair it or fetch it again.")
    return values  # pyright: ignore[reportUnknownVariableType]


def _tensors(folder: Path) -> Mapping[str, Tensor]:
    # transformers' own order: the single file first, then the index.
    if (folder / SINGLE).is_file():
        return dict(read_safetensors(folder / SINGLE))
    if (folder / INDEX).is_file():
        return _sharded(folder)
    raise ParitasError(
        "weights-missing",
        f"the folder has neither {SINGLE} nor {INDEX}",
        place=str(folder),
        hint=_instead_of_weights(folder),
    )


def _instead_of_config(folder: Path) -> str:
    """The next step for a folder that is something else than a checkpoint."""
    if (folder / ADAPTER).is_file():
        return _BASE
    if files := sorted(folder.glob("*.gguf")):
        return f"Give the file itself: {files[0]}"
    return "Give the folder that save_pretrained or a Hub download made, or a .gguf file."


def _instead_of_weights(folder: Path) -> str:
    """The next step for a folder whose weights are something else than we open."""
    found = {path.name for path in folder.iterdir()}
    if shards := sorted(name for name in found if fnmatchcase(name, SHARDS)):
        return f"Fetch {INDEX}, which says what is in {shards[0]} and its like."
    if ADAPTER in found or "adapter_model.safetensors" in found:
        return _BASE
    if others := sorted(name for name in found if name.endswith(".safetensors")):
        return f"If {others[0]} holds them, name it {SINGLE}."
    if pickled := sorted(name for name in found if name.endswith((".bin", ".pt", ".pth"))):
        return f"{pickled[0]} could run code and is not opened: save it again with safetensors."
    if files := sorted(name for name in found if name.endswith(".gguf")):
        return f"Give the file itself: {folder / files[0]}"
    return "Fetch the weights, or give a .gguf file."


def _sharded(folder: Path) -> Mapping[str, Tensor]:
    where = _read_index(folder / INDEX)
    shards = sorted(set(where.values()))
    _check_shards(folder, shards)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        tensors.update(_read_shard(folder / shard, where))
    return tensors


def _read_index(place: Path) -> dict[str, str]:
    """Tensor -> file."""
    weight_map = read_json(place).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ParitasError("index-corrupt", "it has no weight_map", place=str(place), hint="Fetch the index again.")
    where = cast(dict[str, str], weight_map)
    if nowhere := [name for name, file in where.items() if not isinstance(file, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParitasError(
            "index-corrupt", f"it names no file for {nowhere[0]}", place=str(place), hint="Fetch the index again."
        )
    if outside := sorted(file for file in where.values() if Path(file).name != file):
        raise ParitasError(
            "index-corrupt",
            f"it names {outside[0]!r}, outside the folder",
            place=str(place),
            hint="Do not trust this checkpoint.",
        )
    return where


def _check_shards(folder: Path, shards: Sequence[str]) -> None:
    """Every file that the index names is there, and no other one of the kind."""
    place = str(folder / INDEX)
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ParitasError(
            "shard-missing",
            f"{len(missing)} of {len(shards)} files that the index names are not there: {', '.join(missing)}",
            place=place,
            hint="Fetch them.",
        )
    if stray := sorted({file.name for file in folder.glob(SHARDS)} - set(shards)):
        raise ParitasError(
            "index-incomplete",
            f"the index does not name {', '.join(stray)}",
            place=place,
            hint="Remove the files of another checkpoint, or fetch the index again.",
        )


def _read_shard(shard: Path, where: Mapping[str, str]) -> Mapping[str, Tensor]:
    """The tensors of one file, which are those that the index promises: ``where`` is tensor -> file."""
    found = read_safetensors(shard)
    indexed = {name for name, file in where.items() if file == shard.name}
    if absent := sorted(indexed - set(found)):
        raise ParitasError(
            "tensor-missing",
            f"the index promises {_some(absent)}",
            place=str(shard),
            hint="Fetch the shard again.",
        )
    if twice := sorted(set(found) & (set(where) - indexed)):
        raise ParitasError(
            "tensor-duplicated",
            f"it holds {_some(twice)}, which the index says is in {where[twice[0]]}",
            place=str(shard),
            hint="Fetch the checkpoint again: which of the two is meant cannot be told.",
        )
    if extra := sorted(set(found) - indexed):
        raise ParitasError(
            "index-incomplete",
            f"this file holds {_some(extra)}, which the index does not name",
            place=str(shard),
            hint="Fetch the index again.",
        )
    return found


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
