"""Quantised checkpoints, written number by number as their formats are specified; nothing of the readers is used.

Each writer takes the tensors of a tiny checkpoint and returns what is stored, the ``quantization_config``, and what the
stored numbers stand for.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig

import tiny
import tiny_experts
from tiny import WEIGHTS

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, dict[str, Any], Tensors]
GROUP = 24  # of inputs; no divisor of every width, so that a last group may be short
MATRICES = ("_proj.weight",)


def write(source: Path, folder: Path, quantise: Callable[[Tensors], Written]) -> Tensors:
    """A copy of a checkpoint with quantised projections; returns what its quantised tensors stand for, in fp32."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in (WEIGHTS, "config.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    stored, how, meant = quantise(load_file(source / WEIGHTS))
    save_file(
        {name: each.clone(memory_format=torch.contiguous_format) for name, each in stored.items()},
        folder / WEIGHTS,
        {"format": "pt"},
    )
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": how}))
    return meant


def _each(
    tensors: Tensors, quantise: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
) -> tuple[Tensors, Tensors]:
    stored, meant = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in tensors.items():
        if not name.endswith(MATRICES):
            stored[name] = weight
            continue
        parts, meant[name] = quantise(name.removesuffix(".weight"), weight.float())
        stored |= parts
    return stored, meant


def fp8(tensors: Tensors, block: tuple[int, int] = (8, 4)) -> Written:
    """E4M3 and a factor for each block of rows and columns."""

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        down, across = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
        codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        factors, meant = torch.empty(down, across), torch.empty_like(weight)
        for i in range(down):
            for j in range(across):
                part = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
                factors[i, j] = weight[part].abs().max() / 448
                codes[part] = (weight[part] / factors[i, j]).to(torch.float8_e4m3fn)
                meant[part] = codes[part].float() * factors[i, j]
        return {f"{module}.weight": codes, f"{module}.weight_scale_inv": factors}, meant

    stored, meant = _each(tensors, one)
    how = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(block)}
    return stored, {**how, "modules_to_not_convert": ["lm_head"]}, meant


def gptq(
    tensors: Tensors, *, bits: int = 4, mixed: bool = True, first: bool = True, symmetric: bool = False
) -> Written:
    """Codes along the inputs in int32; groups of inputs, mixed as ``desc_act`` mixes them."""
    generator = torch.Generator().manual_seed(3)

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        groups = torch.arange(inputs) // GROUP
        if mixed:
            groups = groups[torch.randperm(inputs, generator=generator)]
        count = int(groups.max()) + 1
        scales, zeros = torch.empty(count, outputs), torch.empty(count, outputs, dtype=torch.int64)
        codes = torch.empty(inputs, outputs, dtype=torch.int64)
        for group in range(count):
            of = weight[:, groups == group]
            low, high = of.min(1).values.clamp(max=-1e-3), of.max(1).values.clamp(min=1e-3)
            low, high = (-torch.maximum(-low, high), torch.maximum(-low, high)) if symmetric else (low, high)
            scales[group] = ((high - low) / (2**bits - 1)).half().float()
            zeros[group] = (-low / scales[group]).round().clamp(1, 2**bits - 1)
            codes[groups == group] = (of / scales[group][:, None] + zeros[group][:, None]).round().long().T
        codes = codes.clamp(0, 2**bits - 1)
        meant = torch.stack([scales[groups[i]] * (codes[i] - zeros[groups[i]]) for i in range(inputs)], 1)
        parts = {
            f"{module}.qweight": packed(codes, bits, dim=0),
            f"{module}.qzeros": packed(zeros - int(first), bits, dim=1),
            f"{module}.scales": scales.half(),
            f"{module}.g_idx": groups.to(torch.int32),
        }
        return parts, meant

    stored, meant = _each(tensors, one)
    how = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": mixed, "sym": symmetric}
    return stored, {**how, "checkpoint_format": "gptq" if first else "gptq_v2"}, meant


def awq(tensors: Tensors) -> Written:
    """Codes along the outputs in int32, in the order of AutoAWQ's GEMM kernel."""

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        size = 8
        groups = weight.reshape(outputs, inputs // size, size)
        low, high = groups.amin(2).clamp(max=-1e-3), groups.amax(2).clamp(min=1e-3)
        scales = ((high - low) / 15).half().float()
        zeros = (-low / scales).round().clamp(0, 15).long()
        codes = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, 15).long()
        meant = (scales[..., None] * (codes - zeros[..., None])).reshape(outputs, inputs)
        parts = {
            f"{module}.qweight": _interleaved(codes.reshape(outputs, inputs).T),
            f"{module}.qzeros": _interleaved(zeros.T),
            f"{module}.scales": scales.T.half(),
        }
        return parts, meant

    stored, meant = _each(tensors, one)
    how = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
    return stored, {**how, "modules_to_not_convert": None}, meant


def packed(codes: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """The first code in the lowest bits."""
    codes, count = codes.movedim(dim, 0), 32 // bits
    words = sum(codes[place::count] << (bits * place) for place in range(count))
    assert isinstance(words, torch.Tensor)
    return (words & 0xFFFFFFFF).to(torch.uint32).view(torch.int32).movedim(0, dim)


def _interleaved(codes: torch.Tensor) -> torch.Tensor:
    """``order_map`` of AutoAWQ: the nibble at place i holds output order_map[i] of eight."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    words = sum(codes[:, order[place] :: 8] << (4 * place) for place in range(8))
    assert isinstance(words, torch.Tensor)
    return (words & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)


def int8(tensors: Tensors) -> Written:
    """bitsandbytes: each row's greatest value becomes 127."""

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        greatest = weight.abs().amax(1)
        codes = (weight * 127 / greatest[:, None]).round().to(torch.int8)
        parts = {
            f"{module}.weight": codes,
            f"{module}.SCB": greatest,
            f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
        }
        return parts, codes.float() * greatest[:, None] / 127

    stored, meant = _each(tensors, one)
    return stored, {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, meant


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Dettmers et al., QLoRA, appendix E."""


def nf4(tensors: Tensors, *, nested: bool = True) -> Written:
    """bitsandbytes: blocks of 64 numbers, row after row; with ``nested``, the blocks' factors in 8 bits themselves."""
    values = torch.tensor(NF4)
    inner = torch.linspace(-1, 1, 256)

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        flat = weight.reshape(-1)
        parts = dict[str, torch.Tensor]()
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
        factors = torch.stack([block.abs().max() for block in flat.split(64)])
        if nested:
            offset = float(factors.mean())
            rest = torch.stack([block.abs().max() for block in (factors - offset).split(256)])
            bytes_ = torch.cat(
                [
                    ((each / of)[:, None] - inner).abs().argmin(1)
                    for each, of in zip((factors - offset).split(256), rest, strict=True)
                ]
            )
            factors = torch.cat([inner[each] * of for each, of in zip(bytes_.split(256), rest, strict=True)]) + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            parts |= {"absmax": bytes_.to(torch.uint8), "nested_absmax": rest, "nested_quant_map": inner}
        else:
            parts["absmax"] = factors
        codes = torch.cat(
            [((b / f)[:, None] - values).abs().argmin(1) for b, f in zip(flat.split(64), factors, strict=True)]
        )
        meant = torch.cat([values[c] * f for c, f in zip(codes.split(64), factors, strict=True)])
        told = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        parts |= {"quant_map": values, "quant_state.bitsandbytes__nf4": told}
        packed_ = (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)[:, None]
        named = {f"{module}.weight.{part}": tensor for part, tensor in parts.items()}
        return {f"{module}.weight": packed_, **named}, meant.reshape(weight.shape)

    stored, meant = _each(tensors, one)
    return stored, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, meant


def mxfp4(tensors: Tensors) -> Written:
    """gpt-oss: blocks of 32 inputs; the lower nibble first, and a byte's power of two for each."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    stored, meant = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = weight
            continue
        blocks = weight.float().transpose(1, 2).unflatten(2, (-1, 32))  # [experts, outputs, blocks, 32]
        power = torch.ceil(torch.log2(blocks.abs().amax(3) / 6)).clamp(-127, 127)
        codes = ((blocks / 2 ** power[..., None])[..., None] - values).abs().argmin(4)
        meant[name] = (values[codes] * 2 ** power[..., None]).flatten(2).transpose(1, 2)
        stored[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        stored[f"{name}_scales"] = (power + 127).to(torch.uint8)
    return stored, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}, meant


def gpt_oss(folder: Path) -> None:
    """Widths that are whole blocks."""
    tiny_experts.written(GptOssConfig, tiny_experts.GPT_OSS | {"hidden_size": 96, "intermediate_size": 64})(folder)


BIASED = tiny.every()["llama-biased"]


def pack_quantized(tensors: Tensors, *, bits: int = 4, symmetric: bool = False, mixed: bool = False) -> Written:
    """compressed-tensors: codes along the inputs, zero points along the outputs, both counted from the middle."""
    generator = torch.Generator().manual_seed(4)
    half, size = 1 << (bits - 1), 8

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        groups = torch.arange(inputs) // size
        groups = groups[torch.randperm(inputs, generator=generator)] if mixed else groups
        scales = torch.empty(outputs, inputs // size)
        zeros = torch.zeros(outputs, inputs // size, dtype=torch.int64)
        codes = torch.empty(outputs, inputs, dtype=torch.int64)
        for group in range(inputs // size):
            of = weight[:, groups == group]
            low, high = of.amin(1).clamp(max=-1e-3), of.amax(1).clamp(min=1e-3)
            span = 2 * torch.maximum(-low, high) if symmetric else high - low
            scales[:, group] = (span / (2**bits - 1)).bfloat16().float()
            if not symmetric:
                zeros[:, group] = (-half - low / scales[:, group]).round().clamp(-half, half - 1)
            codes[:, groups == group] = (of / scales[:, group, None] + zeros[:, group, None]).round().long()
        codes = codes.clamp(-half, half - 1)
        meant = torch.stack([scales[:, groups[i]] * (codes[:, i] - zeros[:, groups[i]]) for i in range(inputs)], 1)
        parts = {
            f"{module}.weight_packed": packed(codes + half, bits, dim=1),
            f"{module}.weight_scale": scales.bfloat16(),
            f"{module}.weight_shape": torch.tensor(weight.shape),
            f"{module}.input_scale": torch.tensor([0.5]),
        }
        parts |= {} if symmetric else {f"{module}.weight_zero_point": packed(zeros + half, bits, dim=0)}
        return parts | ({f"{module}.weight_g_idx": groups.to(torch.int32)} if mixed else {}), meant

    stored, meant = _each(tensors, one)
    return stored, _compressed("pack-quantized", {"num_bits": bits, "symmetric": symmetric, "group_size": size}), meant


def float_quantized(tensors: Tensors, block: tuple[int, int] | None) -> Written:
    """compressed-tensors: FP8 with a scale for each row, or for each block."""

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        height, width = block or (1, weight.shape[1])
        stored, _, meant = fp8({f"{module}.weight": weight} | dict[str, torch.Tensor](), (height, width))
        renames = {f"{module}.weight_scale_inv": f"{module}.weight_scale"}
        return {renames.get(name, name): each for name, each in stored.items()}, meant[f"{module}.weight"]

    stored, meant = _each(tensors, one)
    return stored, _compressed("float-quantized", {"block_structure": None if block is None else list(block)}), meant


def int_quantized(tensors: Tensors) -> Written:
    """compressed-tensors: integers of 8 bits with a scale and a zero for each row."""

    def one(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        scales = (high - low) / 255
        zeros = (-128 - low / scales).round().clamp(-128, 127)
        codes = (weight / scales + zeros).round().clamp(-128, 127)
        parts = {"weight": codes.to(torch.int8), "weight_scale": scales, "weight_zero_point": zeros.to(torch.int8)}
        return {f"{module}.{part}": each for part, each in parts.items()}, scales * (codes - zeros)

    stored, meant = _each(tensors, one)
    return stored, _compressed("int-quantized", {"num_bits": 8, "symmetric": False}), meant


def _compressed(word: str, weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": word}}
    how = {"quant_method": "compressed-tensors", "format": word, "config_groups": groups, "ignore": ["lm_head"]}
    return how | {"quantization_status": "compressed", "kv_cache_scheme": None, "sparsity_config": {}}


FORMATS: Mapping[str, tuple[Callable[[Path], None], Callable[[Tensors], Written]]] = {
    "fp8": (BIASED, fp8),
    "fp8-ragged": (BIASED, lambda tensors: fp8(tensors, (24, 36))),  # transformers 5.24 reads no part of a block
    "gptq": (BIASED, gptq),
    "gptq-v2-symmetric": (BIASED, lambda tensors: gptq(tensors, first=False, symmetric=True, mixed=False)),
    "gptq-8-bits": (BIASED, lambda tensors: gptq(tensors, bits=8)),
    "awq": (BIASED, awq),
    "int8": (BIASED, int8),
    "nf4": (BIASED, nf4),
    "nf4-not-nested": (BIASED, lambda tensors: nf4(tensors, nested=False)),
    "pack-quantized": (BIASED, pack_quantized),
    "pack-quantized-8-bits": (BIASED, lambda tensors: pack_quantized(tensors, bits=8, symmetric=True, mixed=True)),
    "float-quantized": (BIASED, lambda tensors: float_quantized(tensors, None)),
    "float-quantized-block": (BIASED, lambda tensors: float_quantized(tensors, (24, 36))),
    "int-quantized": (BIASED, int_quantized),
    "mxfp4": (gpt_oss, mxfp4),
}
