"""Loads the reference: transformers' class with every weight of the checkpoint in its place, fp32, eager.

A folder is loaded by ``from_pretrained``; of one whose other halves want libraries that are not there, the text model
alone. Weights that only another library could dequantise are ours, in transformers' class. A GGUF file is read by
transformers' own GGUF reader too, independently of ours, but into the class that the whole file describes:
``from_pretrained(gguf_file=...)`` (transformers 5.24) reads neither ``rope_freqs`` (Llama 3.x) nor RoPE scaling
(Gemma 3 4B and up) nor biases, and goes on without them.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid, ParitasError
from paritas.verify.adapting import merge_adapter

DEQUANTISES = ("fp8", "mxfp4")
"""Methods of quantisation that transformers itself dequantises on a CPU, with no other library than accelerate."""

_NEEDS = "Install the extra 'verify' of Paritas: pip install torch transformers"


def check_installed() -> None:
    """Look for torch and transformers without importing them, which takes seconds.

    Raises:
        ParitasError: ``verify-needs-torch``.
    """
    for module in ("torch", "transformers"):
        try:
            found = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise ParitasError(
                "verify-needs-torch", f"the reference is transformers, which needs torch: no {module}", hint=_NEEDS
            )


def require_torch() -> tuple[Any, Any]:
    """The modules torch and transformers.

    Raises:
        ParitasError: ``verify-needs-torch``.
    """
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ParitasError(
            "verify-needs-torch",
            f"the reference is transformers, which needs torch: {error}",
            hint=_NEEDS,
        ) from error


def load_reference(checkpoint: Checkpoint) -> tuple[Any, tuple[str, ...]]:
    """The model, from local files alone, and the checkpoint's tensors that it has no use for.

    Raises:
        ParitasError: ``verify-needs-torch``.
        Invalid: ``reference-unloadable``; ``reference-incomplete`` if a weight is missing or of another shape, since
            transformers would go on with random numbers in its place.
    """
    torch, transformers = require_torch()
    load = _of_gguf if checkpoint.path.suffix == ".gguf" else _of_folder
    if checkpoint.quantised not in (None, *DEQUANTISES):
        load = _of_dequantised
    try:
        with quiet():
            model, info = load(checkpoint, torch, transformers)
    except _load_errors() as error:
        raise Invalid(
            "reference-unloadable",
            f"transformers cannot load the checkpoint: {first_line(error)}",
            place=checkpoint.name,
            hint="Load it with transformers' from_pretrained to see its own report.",
        ) from error
    _check_complete(info, checkpoint.name)
    if checkpoint.adapter is not None:
        model = merge_adapter(model, checkpoint.adapter)
    return model.eval(), tuple(sorted(map(str, info["unexpected_keys"])))


def _of_folder(checkpoint: Checkpoint, torch: Any, transformers: Any) -> tuple[Any, dict[str, Any]]:
    load: Callable[..., Any] = functools.partial(
        transformers.AutoModelForCausalLM.from_pretrained,
        str(checkpoint.path),
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    try:
        return load()
    except ImportError:
        # The halves for images and sound may want libraries that text does without (Gemma 3n: timm).
        config = transformers.AutoConfig.from_pretrained(str(checkpoint.path), trust_remote_code=False)
        if (text := config.get_text_config()) is config:
            raise
        return load(config=text)


def _of_dequantised(checkpoint: Checkpoint, torch: Any, transformers: Any) -> tuple[Any, dict[str, Any]]:
    """As from_pretrained, with weights that we dequantised: transformers would need the library that wrote them."""
    config = transformers.AutoConfig.from_pretrained(str(checkpoint.path), trust_remote_code=False)
    del config.quantization_config
    with torch.device("meta"):
        empty: Any = transformers.AutoModelForCausalLM.from_config(config)
    tensors = {name: torch.from_numpy(tensor.read()) for name, tensor in checkpoint.tensors.items()}
    model, info = empty.__class__.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    if checkpoint.generation:
        model.generation_config = transformers.GenerationConfig(**checkpoint.generation)
    return model, info


def _of_gguf(checkpoint: Checkpoint, torch: Any, transformers: Any) -> tuple[Any, dict[str, Any]]:
    """As from_pretrained; a tensor that transformers' reader passes over (a bias) is read by ours."""
    config = transformers.AutoConfig.for_model(**checkpoint.config)
    build = functools.partial(
        transformers.AutoModelForCausalLM.from_config, config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.device("meta"):
        names = build()
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    with _reading_gguf(reader):
        read = reader.load_gguf_checkpoint(str(checkpoint.path), return_tensors=True, model_to_load=names)["tensors"]
    model = build()
    model.generation_config = transformers.GenerationConfig(**checkpoint.generation)
    tensors = {
        name: read[name] if name in read else torch.from_numpy(tensor.read())
        for name, tensor in checkpoint.tensors.items()
    }
    result = model.load_state_dict(tensors, strict=False)
    stored = dict(model.named_parameters(remove_duplicate=False))
    filled = {stored[name].data_ptr() for name in tensors if name in stored}
    return model, {
        "missing_keys": {name for name in result.missing_keys if stored[name].data_ptr() not in filled},  # tied: not
        "unexpected_keys": set(result.unexpected_keys) | (set(read) - set(tensors)),
    }


def _load_errors() -> tuple[type[Exception], ...]:
    """What transformers raises for a checkpoint that is not whole or not known."""
    broken: type[Exception] = importlib.import_module("safetensors").SafetensorError
    config: type[Exception] = importlib.import_module("huggingface_hub.errors").StrictDataclassError
    return (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, broken, config)


def _check_complete(info: dict[str, Any], place: str) -> None:
    wrong = [
        f"{len(names)} {what} ({', '.join(str(name) for name in sorted(names, key=str)[:3])})"
        for what, names in (
            ("missing", info["missing_keys"]),
            ("of another shape", info.get("mismatched_keys")),
            ("that failed", info.get("error_msgs")),
        )
        if names
    ]
    if wrong:
        raise Invalid(
            "reference-incomplete",
            f"transformers did not find every weight in its place: {'; '.join(wrong)}",
            place=place,
            hint="A reference with random weights proves nothing: repair the checkpoint.",
        )


@contextmanager
def _reading_gguf(reader: Any) -> Generator[None]:
    """Within, gguf's table of names is made once (transformers asks once a tensor) and no bar is drawn."""
    gguf: Any = importlib.import_module("gguf")
    table, bar = gguf.get_tensor_name_map, reader.tqdm
    gguf.get_tensor_name_map, reader.tqdm = functools.cache(table), functools.partial(bar, disable=True)
    try:
        yield
    finally:
        gguf.get_tensor_name_map, reader.tqdm = table, bar


@contextmanager
def quiet() -> Generator[None]:
    """Nothing of transformers' own on the terminal: what it has to say is asked of it and reported."""
    logging = importlib.import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """What an error says first, or what it is."""
    lines = str(error).strip().splitlines()
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(line.strip() for line in told)[:200] or type(error).__name__
