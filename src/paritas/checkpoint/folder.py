"""A checkpoint folder as transformers saves it: config.json, safetensors, tokenizer, generation defaults."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paritas.checkpoint.base import Checkpoint, Tensor
from paritas.checkpoint.safetensors import read_safetensors
from paritas.errors import ParitasError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
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
            "config-missing",
            "the folder has no config.json",
            place=str(folder),
            hint="Give the folder that save_pretrained or a Hub download made, or a .gguf file.",
        )
    generation = folder / "generation_config.json"
    return Checkpoint(
        path=folder,
        config=read_json(config),
        config_place=str(config),
        tensors=_tensors(folder),
        generation=read_json(generation) if generation.is_file() else {},
        tokenizer_files={name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()},
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object out of a file.

    Raises:
        ParitasError: ``json-corrupt``, with line and column.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
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
    pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
    raise ParitasError(
        "weights-missing",
        f"the folder has neither {SINGLE} nor {INDEX}",
        place=str(folder),
        hint=f"{pickled[0].name} could run code and is not opened: save it again with safetensors."
        if pickled
        else "Fetch the weights, or give a .gguf file.",
    )


def _sharded(folder: Path) -> Mapping[str, Tensor]:
    place = folder / INDEX
    weight_map = read_json(place).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ParitasError("index-corrupt", "it has no weight_map", place=str(place), hint="Fetch the index again.")
    where: dict[str, str] = {str(name): str(file) for name, file in weight_map.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    shards = sorted(set(where.values()))
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise ParitasError(
            "index-corrupt",
            f"it names {outside[0]!r}, outside the folder",
            place=str(place),
            hint="Do not trust this checkpoint.",
        )
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ParitasError(
            "shard-missing",
            f"{len(missing)} of {len(shards)} files that the index names are not there: {', '.join(missing)}",
            place=str(place),
            hint="Fetch them.",
        )
    if stray := sorted({file.name for file in folder.glob("model-*.safetensors")} - set(shards)):
        raise ParitasError(
            "index-incomplete",
            f"the index does not name {', '.join(stray)}",
            place=str(place),
            hint="Remove the files of another checkpoint, or fetch the index again.",
        )
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        found = read_safetensors(folder / shard)
        indexed = {name for name, file in where.items() if file == shard}
        if absent := sorted(indexed - set(found)):
            raise ParitasError(
                "tensor-missing",
                f"the index promises {absent[0]} and {len(absent) - 1} more",
                place=str(folder / shard),
                hint="Fetch the shard again.",
            )
        if extra := sorted(set(found) - indexed):
            raise ParitasError(
                "index-incomplete",
                f"the index does not name {extra[0]} and {len(extra) - 1} more tensors of this file",
                place=str(folder / shard),
                hint="Fetch the index again.",
            )
        tensors.update(found)
    return tensors
