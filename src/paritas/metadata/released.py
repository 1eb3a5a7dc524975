"""The dialect of the released wheel (onnx-genai 0.1.0.dev6): shapes without ranks, in the lowest version that does."""

from paritas.metadata import spelling
from paritas.metadata.spelling import Shape, Values
from paritas.metadata.workflow import Document, Speculation, Tensor, Tokens

WHEEL = "0.1.0.dev6"
"""The release that this dialect is held against."""


def document(given: Document) -> Values:
    """The document as plain mappings, in the order in which it is written."""
    return {
        "schema_version": f"v1.{minor}" if (minor := version(given)) else "v1",
        "model": {"max_sequence_length": given.context, "vocab_size": given.vocab},
        "pipeline": {"workflow": {"manifest": {}, **spelling.workflow(given.workflow, contract, _family(minor))}},
        **({"package": {"tokenizer": facts}} if (facts := tokenizer(given)) else {}),
        **({} if given.speculation is None else {"speculative": speculative(given.speculation)}),
        **({"generation": {"defaults": dict(given.defaults)}} if given.defaults else {}),
    }


def version(given: Document) -> int:
    """The number behind ``v1.`` of the lowest one that has a place for everything in the document."""
    if given.speculation is not None:
        return 6
    return 2 if special_tokens(given.tokens) else 0


def _family(minor: int) -> Values:
    """What an output is read as: from v1.5 on it has to be said."""
    return {"family": {"kind": "materialized"}} if minor >= 5 else {}


def speculative(given: Speculation) -> Values:
    """How a drafter guesses, and how the target's answer is held against it."""
    accepted = {"kind": "runtime", "binding": "accepted_prefix"}
    target = {"component": given.target, "output": given.target_logits}
    return {
        "identity": "onnx-genai.speculative",
        "version": "1",
        **spelling.speculation(given, scale=True),
        "verification": {"target_output": target, "accepted_path": accepted},
    }


def contract(tensor: Tensor) -> Values:
    """dtype, sizes (``Any`` for one that is free), rows."""
    shape = Shape("Any" if size is None else size for size in tensor.shape)
    return {"dtype": tensor.dtype, "shape": shape, **spelling.layout(tensor)}


def tokenizer(given: Document) -> Values:
    """Its facts and the ids that steer a generation."""
    ids = special_tokens(given.tokens)
    return spelling.tokenizer(given.tokenizer) | ({"special_tokens": ids} if ids else {})


def special_tokens(tokens: Tokens) -> Values:
    """Ids by transformers' names; end tokens are a list."""
    ids = {"bos_token_id": tokens.begin, "eos_token_id": list(tokens.ends) or None, "pad_token_id": tokens.pad}
    return {key: value for key, value in ids.items() if value is not None}
