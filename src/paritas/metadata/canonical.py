"""The dialect of August 2026 ("canonical v1"): ranks beside shapes, and a list of what a reader has to know."""

from collections.abc import Iterator

from paritas.metadata import spelling
from paritas.metadata.spelling import Shape, Values
from paritas.metadata.workflow import Document, Tensor, Tokens, Workflow
from paritas.package.vocabulary import Vocabulary

VERSION = "v1"


def document(given: Document) -> Values:
    """The document as plain mappings, in the order in which it is written."""
    manifest = {"capabilities": sorted(capabilities(given.workflow))}
    return {
        "schema_version": VERSION,
        "model": {"max_sequence_length": given.context, "vocab_size": given.vocab},
        "pipeline": {"workflow": {"manifest": manifest, **spelling.workflow(given.workflow, contract, {})}},
        **({"package": {"tokenizer": tokenizer(given.tokenizer, given.tokens)}} if given.tokenizer else {}),
        **({} if given.speculation is None else {"speculative": spelling.speculation(given.speculation, scale=False)}),
        **({"generation": {"defaults": dict(given.defaults)}} if given.defaults else {}),
    }


def tokenizer(vocabulary: Vocabulary, tokens: Tokens) -> Values:
    """Its facts; each token that steers a generation with its id and its text, further end tokens as eos_2 and on."""
    ends = {"eos" if place == 1 else f"eos_{place}": end for place, end in enumerate(tokens.ends, 1)}
    ids = {"bos": tokens.begin, **ends, "pad": tokens.pad}
    texts = {role: vocabulary.contents.get(id_) for role, id_ in ids.items() if id_ is not None}
    special = {role: {"id": ids[role], "content": text} for role, text in texts.items() if text}
    return spelling.tokenizer(vocabulary) | ({"special_tokens": special} if special else {})


def contract(tensor: Tensor) -> Values:
    """dtype, rank, sizes where each is a number or a symbol, rows."""
    known = None not in tensor.shape
    return {
        "dtype": tensor.dtype,
        "rank": len(tensor.shape),
        **({"shape": Shape(tensor.shape)} if known else {}),
        **spelling.layout(tensor),
    }


def capabilities(given: Workflow) -> Iterator[str]:
    """What the workflow uses, by the standard's words; a manifest that lacks one is invalid."""
    yield "workflow_ssa"
    yield "serving_service_contract"
    yield "typed_emit"
    yield "nested_control_flow"
    yield "loop_induction_values"
    yield "linear_effects"
    if any(cell.bound is not None for cell in given.cells.values()):
        yield "bounded_state_recurrence"
