"""Tiny checkpoints that cannot hide a fault, written to disk in bf16 by transformers itself.

The shapes: hidden is no square, every dimension is another number, heads * head_dim is not hidden, the attention's
scale is not head_dim ** -0.5, there is a layer of every kind, the window and the original RoPE context are far
shorter than the context, and every parameter is random (a bias of zero hides a missing bias).
"""

import importlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

VOCAB, HIDDEN, HEAD_DIM, WINDOW, CONTEXT = 331, 72, 16, 8, 128
GLOBAL_THETA, LOCAL_THETA = 400_000.0, 7_000.0
WEIGHTS = "model.safetensors"
OFFSET_NORMS = ("gemma", "nemotron")  # families that store a norm's weight less 1

TEXT = """A small stone bridge crosses the river behind our school. In winter the water is loud, in summer
it is a thread. What do you see from there? Two boats, a heron, and the roof of the capital's oldest bakery.
پلی کوچک از روی رودخانه می‌گذرد. در زمستان صدای آب بلند است و در تابستان آرام. نان تازه کجاست؟
学校后面有一座小石桥。冬天水声很大, 夏天很安静。你在桥上看见了什么?
За школой через реку перекинут мост. Hinter der Schule führt eine Brücke über den Fluß.
"""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SPECIAL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>")
PAD, EOS, BOS, IM_END, TURN_END = 0, 1, 2, 4, 6


def tiny_llama(folder: Path, **changes: Any) -> None:
    """A Llama checkpoint: 3 layers, grouped heads of an explicit size, tied head, default RoPE."""
    values = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 104,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 3e-5,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0},
        **TOKEN_IDS,
    }
    save(folder, LlamaConfig(**values | changes), CHATML, [EOS, IM_END])


def tiny_gemma3(folder: Path, **changes: Any) -> None:
    """A Gemma 3 text checkpoint: 7 layers, the third and the sixth of them full, factor 8 on those, capped logits."""
    save(folder, gemma3_text_config(**changes), TURNS, [EOS, TURN_END])


def tiny_gemma3_of_transformers_4(folder: Path) -> None:
    """The same with config.json as transformers 4 wrote it: flat RoPE keys, and nothing that is the class's default."""
    tiny_gemma3(folder, rms_norm_eps=1e-6, rope_parameters=rope_by_kind(full=1_000_000.0))
    config = json.loads((folder / "config.json").read_text())
    ropes = config.pop("rope_parameters")
    del config["layer_types"]
    default = Gemma3TextConfig().to_dict()
    config = {key: value for key, value in config.items() if key == "model_type" or default.get(key) != value}
    config |= {
        "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
        "rope_scaling": {"rope_type": "linear", "factor": ropes["full_attention"]["factor"]},
        "sliding_window_pattern": 3,
        "torch_dtype": config.pop("dtype"),
    }
    (folder / "config.json").write_text(json.dumps(config))


def tiny_gemma3_multimodal(folder: Path, prefixes: Mapping[str, str]) -> None:
    """A Gemma 3 with its image half.

    Args:
        folder: where it goes.
        prefixes: prefix as transformers 5 saves it -> prefix to store it under.
    """
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "image_size": 28,
        "patch_size": 7,
        "vision_use_head": False,
    }
    text = gemma3_text_config(final_logit_softcapping=None).to_dict()  # transformers caps the text class's logits alone
    ids = {"image_token_index": VOCAB - 1, "boi_token_index": VOCAB - 2, "eoi_token_index": VOCAB - 3}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **ids)
    save(folder, config, TURNS, [EOS, TURN_END])
    tensors = load_file(folder / WEIGHTS)
    save_file({renamed(name, prefixes): value for name, value in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


def gemma3_text_config(**changes: Any) -> Gemma3TextConfig:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 104,
        "num_hidden_layers": 7,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "query_pre_attn_scalar": 24,
        "rms_norm_eps": 3e-5,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        "final_logit_softcapping": 5.0,
        "rope_parameters": rope_by_kind(full=GLOBAL_THETA),
        **TOKEN_IDS,
    }
    return Gemma3TextConfig(**values | changes)


def rope_by_kind(full: float) -> dict[str, dict[str, Any]]:
    return {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": full},
        "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_THETA},
    }


TOKEN_IDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 9_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 6_000.0, "factor": 4.0}
HUB_PREFIXES = {"vision_tower.": "vision_tower.vision_model."}
MODULE_PREFIXES = {
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
BIASED = {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}

CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "llama": tiny_llama,
    "llama-biased": lambda folder: tiny_llama(folder, **BIASED),
    "llama-linear": lambda folder: tiny_llama(folder, rope_parameters=LINEAR, hidden_act="gelu"),
    "gemma3": tiny_gemma3,
    "gemma3-transformers-4": tiny_gemma3_of_transformers_4,
    "gemma3-multimodal": lambda folder: tiny_gemma3_multimodal(folder, MODULE_PREFIXES),
    "gemma3-multimodal-hub": lambda folder: tiny_gemma3_multimodal(folder, HUB_PREFIXES),
}


@cache
def every() -> Mapping[str, Callable[[Path], None]]:
    """Name -> writer of every tiny checkpoint: those here and those of each ``tiny_*.py`` beside this file."""
    found = dict(CHECKPOINTS)
    for path in sorted(Path(__file__).parent.glob("tiny_*.py")):
        more: dict[str, Callable[[Path], None]] = importlib.import_module(path.stem).CHECKPOINTS
        assert not found.keys() & more.keys(), found.keys() & more.keys()
        found |= more
    return found


def of_family(model_type: str) -> list[str]:
    """Names of the tiny checkpoints of a family: they begin with its ``model_type``, without Gemma's ``_text``."""
    return [name for name in every() if name.split("-")[0] == model_type.removesuffix("_text")]


def save(folder: Path, config: PreTrainedConfig, template: str, eos: list[int]) -> None:
    """Model, tokenizer and generation defaults, each written by transformers."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS, eos_token_id=eos, pad_token_id=PAD, repetition_penalty=1.1
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tiny_tokenizer(template, SPECIAL[eos[-1]]).save_pretrained(folder)


def randomize(model: PreTrainedModel) -> None:
    """Every parameter: matrices that keep the size of what they are given, norms and biases far from their defaults.

    Every buffer that a checkpoint holds too.
    """
    generator, stored = torch.Generator().manual_seed(20261129), model.state_dict().keys()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, spread(name, parameter), generator=generator)
            if "norm" in name and not name.endswith("bias") and not model.config.model_type.startswith(OFFSET_NORMS):
                parameter.add_(1)
        for name, buffer in model.named_buffers():
            if name in stored and buffer.is_floating_point():
                buffer.uniform_(0.6, 1.4, generator=generator)


def spread(name: str, parameter: torch.Tensor) -> float:
    if name.endswith("router.scale"):  # which a small number multiplies
        return 9.0
    if parameter.ndim == 1 or name.endswith("bias"):
        return 0.3
    if "experts" in name:  # [experts, outputs, inputs]
        return parameter.shape[-1] ** -0.5
    if "modality_router" in name:  # whose input is divided by its width
        return parameter.shape[-1] ** 0.5
    return 0.15 if "embed" in name else parameter[0].numel() ** -0.5


def tiny_tokenizer(template: str, end: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on a few paragraphs in five scripts; fewer tokens than the model has rows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 8,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token=end,
        pad_token="<pad>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def names(folder: Path) -> set[str]:
    """Of a checkpoint's tensors."""
    return set(load_file(folder / WEIGHTS))


def tensor(folder: Path, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A tensor of a checkpoint, widened to fp32."""
    return load_file(folder / WEIGHTS)[name].float().numpy()
