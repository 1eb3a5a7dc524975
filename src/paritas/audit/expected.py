"""What the checkpoint says should be: tensors under the text model's names and, for a known family, the spec."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from paritas.audit.experts import one_by_one
from paritas.audit.finding import Finding
from paritas.audit.told import Told, by_config, by_spec
from paritas.checkpoint import Checkpoint, Tensor
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.errors import ParitasError, Unsupported
from paritas.families import Family, family_of, text_name, without_keys
from paritas.spec import Decoder

# Buffers that old checkpoints store and transformers computes.
_BUFFERS = ("*.rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias", "*position_ids", "*.rotary_emb.*_cached")
# What a family may say of a configuration that is right all the same, and that another release writes otherwise.
_UNREAD = frozenset({"config-key-unread", "config-rope-ambiguous", "config-value-wrong", "config-key-missing"})


@dataclass(frozen=True)
class Expected:
    """What a package of this checkpoint has to hold.

    Attributes:
        checkpoint: its text half, where it holds more.
        tensors: under the text model's own names.
        spec: None if no family of ours reads the configuration.
        why: the reason for that.
        dropped: patterns of tensors that the text model does not compute with.
    """

    checkpoint: Checkpoint
    tensors: Mapping[str, Tensor]
    spec: Decoder | None
    why: Finding | None
    dropped: tuple[str, ...]

    @cached_property
    def told(self) -> Told:
        """What the family reads in the configuration, or what it says in words that all families share."""
        if self.spec is not None:
            return by_spec(self.spec)
        return by_config(self.checkpoint.config, self.checkpoint.config_place)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """What a graph's initializer may equal: not the causal masks that old checkpoints store, as booleans."""
        return {n: t for n, t in self.tensors.items() if t.dtype not in ("BOOL", "U8") or not self.is_dropped(n)}

    def is_dropped(self, tensor: str) -> bool:
        """Whether the family itself says that a tensor has no place in the text model."""
        names = (tensor, self.tensors[tensor].name)
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.dropped)


def expected(checkpoint: Checkpoint) -> Expected:
    """Read what can be read; a family that is not known is a note, not an end."""
    checkpoint = text_only(checkpoint)
    try:
        config = Config(checkpoint.config, checkpoint.config_place)
        family = family_of(config)
        spec = family.read(config)
        config.finish()
    except Unsupported as error:
        return Expected(checkpoint, checkpoint.tensors, None, _without_spec(error), _BUFFERS)
    except ParitasError as error:
        if error.code not in _UNREAD:
            raise
        return Expected(checkpoint, checkpoint.tensors, None, _without_spec(error), _BUFFERS)
    dropped = (*_BUFFERS, *(pattern for pattern, _ in (*family.DROPPED, *without_keys(spec))))
    return Expected(checkpoint, one_by_one(_renamed(checkpoint.tensors, family), spec), spec, None, dropped)


def _renamed(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    return {text_name(name, family.RENAMES): tensor for name, tensor in tensors.items()}


def _without_spec(error: ParitasError) -> Finding:
    return Finding(
        "spec-missing",
        "note",
        error.place or "config.json",
        f"RoPE and attributes are not audited: {error.code}: {error.fact}",
        "Weights, tokenizer and configuration are audited all the same; paritas verify covers the rest.",
    )
