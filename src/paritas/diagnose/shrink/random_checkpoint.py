"""Makes the checkpoint of an issue: a random model of any architecture, by torch and transformers alone.

The text of this file goes into the issue, with the configuration: it needs nothing else of Paritas.
"""

import json
from pathlib import Path
from typing import Any

SEED = 20261129
SPREAD = 0.3  # of biases and norms: what has its default value hides that it is missing
SPECIAL = ("<pad>", "<eos>", "<bos>")
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def write_checkpoint(config: dict[str, Any], folder: Path) -> None:
    """Write config.json as it is given, random weights in the dtype that it names, and a tokenizer of single bytes.

    Args:
        config: values of config.json.
        folder: is made.
    """
    import torch
    import transformers

    kind: Any = transformers.CONFIG_MAPPING[config["model_type"]]
    maker: Any = transformers.AutoModelForCausalLM
    model: Any = maker.from_config(kind.from_dict(dict(config)), dtype=torch.float32)
    randomize(model)
    model.generation_config = transformers.GenerationConfig(
        **{key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    )
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    model.to(getattr(torch, stored)).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if config["vocab_size"] >= 256 + len(SPECIAL):
        byte_tokenizer().save_pretrained(folder)


def randomize(model: Any) -> None:
    """Every parameter: matrices that keep the size of what they are given, biases and norms around their defaults.

    Buffers that a checkpoint holds too.
    """
    import torch

    generator, stored = torch.Generator().manual_seed(SEED), model.state_dict().keys()
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty_like(parameter).normal_(generator=generator)
            if parameter.ndim == 1 or name.endswith("bias"):
                parameter.add_(noise * SPREAD)
            elif parameter is embedding:
                parameter.copy_(noise * 0.15)
            elif "experts" in name:  # [experts, outputs, inputs]
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
        for name, buffer in model.named_buffers():
            if name in stored:
                buffer.add_(torch.empty_like(buffer).normal_(generator=generator) * SPREAD)


def byte_tokenizer() -> Any:
    """A token for each byte, and three special ones."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer: Any = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast: Any = transformers.PreTrainedTokenizerFast
    pad, eos, bos = SPECIAL
    return fast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=eos,
        bos_token=bos,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
