"""A PEFT adapter merged into its base checkpoint: the same checkpoint, whose tensors are computed when they are read.

Source: peft 0.21, ``tuners/lora/layer.py`` (``update_layer``, ``get_delta_weight``, ``merge``).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paritas.checkpoint.adapter_config import ADVICE, AdapterConfig
from paritas.checkpoint.base import Checkpoint, Tensor
from paritas.checkpoint.folder import ADAPTER, read_json, tokenizer_files
from paritas.checkpoint.lora import Dora, Lora, LoraEmbedding, Merged, Saved
from paritas.checkpoint.safetensors import read_safetensors
from paritas.errors import ParitasError, Unsupported

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_WRAPPERS = (".base_layer.", ".modules_to_save.")  # PEFT's own modules around the model's
_ROOTS = ("model.language_model.", "language_model.model.", "model.")
"""Where a text model stands: in a multimodal one of transformers 5, in one as published, and alone."""
_ENDINGS = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "embedding A",
    ".lora_embedding_B": "embedding B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
_WHOLE = (set[str](), {"A", "B"}, {"A", "B", "magnitude"}, {"embedding A", "embedding B"})
Parts = Mapping[str, Tensor]


def adapted(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """``checkpoint`` with the adapter in ``folder`` merged into it, in fp32.

    Raises:
        ParitasError: ``adapter-missing``, ``adapter-tensor-unmatched``, ``adapter-tensor-missing``, ``adapter-shape``,
            ``adapter-without-effect``, ``adapter-tied-head``; as :class:`AdapterConfig` and as ``read_safetensors``.
        Unsupported: ``adapter-unsupported``.
    """
    if not (folder / ADAPTER).is_file():
        hint = "Give the folder that save_pretrained of a PEFT model made."
        raise ParitasError("adapter-missing", f"the folder has no {ADAPTER}", place=str(folder), hint=hint)
    config = AdapterConfig(read_json(folder / ADAPTER), str(folder / ADAPTER))
    weights = _weights(folder)
    given = _parts(read_safetensors(weights), str(weights))
    bases = {name: _base(name, checkpoint.tensors) for name in given}
    _check_matched(bases, str(weights))
    merged = [_merged(base, name, given[name], config) for name, base in bases.items() if base is not None]
    _check_tied(merged, checkpoint.tensors, str(weights))
    if not any(tensor.has_effect() for tensor in merged):
        raise ParitasError(
            "adapter-without-effect",
            f"none of the adapter's {len(merged)} tensors changes a weight; B of one that was never trained is 0",
            place=str(weights),
            hint="Export the base alone, or give the adapter that was trained.",
        )
    own = (folder / "tokenizer.json").is_file()
    return dataclasses.replace(
        checkpoint,
        name=f"{checkpoint.name} + {folder.resolve().name}",
        tensors={**checkpoint.tensors, **{tensor.name: tensor for tensor in merged}},
        tokenizer_files=tokenizer_files(folder) if own else checkpoint.tokenizer_files,
        adapter=folder,
    )


def _weights(folder: Path) -> Path:
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    pickled = "adapter_model.bin could run code and is not opened: save the adapter again with safetensors."
    hint = pickled if (folder / "adapter_model.bin").is_file() else "Fetch the adapter's weights."
    raise ParitasError("adapter-missing", f"the folder has no {WEIGHTS}", place=str(folder), hint=hint)


def _parts(found: Mapping[str, Tensor], place: str) -> dict[str, Parts]:
    """Name of the base's parameter, as PEFT knows it -> what the adapter has of it, by :data:`_WHOLE`'s words."""
    given: dict[str, dict[str, Tensor]] = {}
    for stored, tensor in found.items():
        name = stored.removeprefix(_PREFIX)
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, ".")
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
        if ending is None and ".lora_" in name:
            fact = f"{stored} is a part of LoRA that is not read here"
            raise Unsupported("adapter-unsupported", fact, place=place, hint=ADVICE)
        parameter = name if ending is None else f"{name.removesuffix(ending)}.weight"
        given.setdefault(parameter, {})["saved" if ending is None else _ENDINGS[ending]] = tensor
    for parameter, parts in given.items():
        if set(parts) - {"saved"} not in _WHOLE:
            raise ParitasError(
                "adapter-tensor-missing",
                f"of {parameter} the adapter has {' and '.join(sorted(parts))} alone",
                place=place,
                hint="Fetch the adapter again.",
            )
    return dict(given)


def _base(parameter: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The base's tensor, wherever its text model stands."""
    return next((tensors[name] for name in _spellings(parameter) if name in tensors), None)


def _spellings(parameter: str) -> Iterator[str]:
    yield parameter
    root = next((root for root in _ROOTS if parameter.startswith(root)), None)
    if root is None:
        yield f"language_model.{parameter}"  # a head beside the text model
    else:
        yield from (other + parameter.removeprefix(root) for other in _ROOTS)


def _check_matched(bases: Mapping[str, Tensor | None], place: str) -> None:
    unmatched = sorted(name for name, base in bases.items() if base is None)
    if unmatched or not bases:
        raise ParitasError(
            "adapter-tensor-unmatched",
            f"the checkpoint has no tensor for {len(unmatched)} of the adapter's {len(bases)}"
            + (f": {', '.join(unmatched[:3])}" if unmatched else ""),
            place=place,
            hint="It belongs to another base: base_model_name_or_path in its adapter_config.json says to which.",
        )


def _merged(base: Tensor, parameter: str, parts: Parts, config: AdapterConfig) -> Merged:
    merged = _made(base, parameter.removesuffix(".weight"), parts, config)
    if not merged.fits:
        shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in parts.items())
        raise ParitasError(
            "adapter-shape",
            f"{base.name} is {list(base.shape)} in the checkpoint, and the adapter has {shapes}",
            place=next(iter(parts.values())).place,
            hint="It belongs to a model of other sizes. If its vocabulary was resized, resize the base's first.",
        )
    return merged


def _made(base: Tensor, module: str, parts: Parts, config: AdapterConfig) -> Merged:
    if "saved" in parts:  # alone, or what LoRA is added to: PEFT saves an embedding with its LoRA
        base = Saved(base, parts["saved"])
    if isinstance(base, Saved) and (len(parts) == 1 or not base.fits):
        return base
    if "embedding A" in parts:
        a, b = parts["embedding A"], parts["embedding B"]
        return LoraEmbedding(base, a, b, config.scale(module, a.shape[0]))
    if config.dora != ("magnitude" in parts):
        raise ParitasError(
            "adapter-tensor-missing",
            f"use_dora is {config.dora}, and {module} has {'a' if 'magnitude' in parts else 'no'} magnitude",
            place=parts["A"].place,
            hint="Fetch the adapter again.",
        )
    lora = Lora(base, parts["A"], parts["B"], config.scale(module, parts["A"].shape[0]))
    return Dora(lora, parts["magnitude"]) if config.dora else lora


def _check_tied(merged: Sequence[Merged], tensors: Mapping[str, Tensor], place: str) -> None:
    """A head without a tensor of its own is the embedding: to change one is to change both, or to untie them."""
    embedding = next((tensor.name for tensor in merged if tensor.name.endswith("embed_tokens.weight")), None)
    if embedding is not None and not any(name.endswith("lm_head.weight") for name in tensors):
        raise Unsupported(
            "adapter-tied-head",
            f"the adapter changes {embedding}, which the head is tied to: beside the model it leaves the head as it "
            "was, merged it changes it",
            place=place,
            hint="Save the base untied first (tie_word_embeddings false, lm_head.weight of its own), and export that.",
        )
