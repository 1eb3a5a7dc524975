"""Opens whatever a person calls a model: a folder, a GGUF file, a Hub id."""

import dataclasses
import re
from pathlib import Path

from paritas.checkpoint.base import Checkpoint
from paritas.checkpoint.folder import open_folder
from paritas.checkpoint.quantised import dequantised
from paritas.errors import ParitasError

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WANTED = ("*.json", "*.safetensors", "*.jinja")


def open_checkpoint(model: str | Path | Checkpoint) -> Checkpoint:
    """Open a checkpoint.

    Args:
        model: a folder as transformers saves it, a ``.gguf`` file, or a Hub id (``google/gemma-3-270m-it``); a
            checkpoint that is open already (:func:`with_adapter`) is given back.

    Raises:
        ParitasError: ``checkpoint-missing``, and what the reader of each kind raises.
    """
    if isinstance(model, Checkpoint):
        return model
    path = locate(model)
    if path.is_dir():
        checkpoint = dequantised(open_folder(path))
        # A Hub id lies in a folder whose name is a commit: it is called by its id.
        return checkpoint if Path(model).expanduser().exists() else dataclasses.replace(checkpoint, name=str(model))
    if path.suffix.lower() == ".gguf":
        from paritas.checkpoint.gguf import open_gguf  # its tables take a moment; a folder does not need them

        return open_gguf(path)
    raise ParitasError(
        "checkpoint-unknown",
        "neither a folder nor a .gguf file",
        place=str(path),
        hint="Give the checkpoint's folder, a .gguf file, or a Hub id.",
    )


def with_adapter(model: str | Path, adapter: Path | None) -> Path | Checkpoint:
    """Where a model is, or, opened, what a PEFT adapter makes of it.

    Raises:
        ParitasError: ``checkpoint-missing``; and as :func:`paritas.checkpoint.adapter.adapted`.
    """
    if adapter is None:
        return locate(model)
    from paritas.checkpoint.adapter import adapted

    return adapted(open_checkpoint(model), adapter)


def locate(model: str | Path) -> Path:
    """The path of a model on this machine.

    A Hub id is fetched into the Hub's own cache; HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are honoured.

    Raises:
        ParitasError: ``checkpoint-missing``.
    """
    text = str(model)
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    if text and path.exists():
        return path
    if not _HUB_ID.fullmatch(text) or text.endswith(".gguf"):
        raise ParitasError(
            "checkpoint-missing",
            "there is no such file or folder",
            place=text,
            hint="Check the path, or give a Hub id like org/name.",
        )
    return _from_hub(text)


def text_only(checkpoint: Checkpoint) -> Checkpoint:
    """The text half of a multimodal checkpoint, by its ``text_config``; one that has none is returned as it is."""
    inner = checkpoint.config.get("text_config")
    if not isinstance(inner, dict):
        return checkpoint
    config = dict(inner)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(tied := checkpoint.config.get("tie_word_embeddings"), bool):
        config["tie_word_embeddings"] = tied  # the outer class owns the head
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if checkpoint.config.get(key) is not None:
            config[key] = checkpoint.config[key]
    return dataclasses.replace(checkpoint, config=config, config_place=f"{checkpoint.config_place}, text_config")


def _from_hub(model_id: str) -> Path:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_id, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise ParitasError(
            "checkpoint-missing",
            f"no such path here, and the Hub did not give it: {str(error).splitlines()[0]}",
            place=model_id,
            hint="Check the spelling, HF_TOKEN (gated models) and HF_HUB_OFFLINE.",
        ) from None
