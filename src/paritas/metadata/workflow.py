"""A package's workflow in plain frozen values: what both dialects of the metadata say, in neither one's words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paritas.package.vocabulary import Vocabulary

BATCH = "batch"
ANY = None
"""A size that nothing constrains."""

Size = int | str | None


@dataclass(frozen=True)
class Tensor:
    """A tensor's contract.

    Attributes:
        dtype: ONNX's word (``float32``).
        shape: a number, a symbol, or None for any size. Sizes of one symbol are equal when the package runs.
        rows: its first size is the batch, a row a request; else all requests share it.
    """

    dtype: str
    shape: tuple[Size, ...]
    rows: bool = True


@dataclass(frozen=True)
class Input:
    """A value that comes from outside.

    Attributes:
        tensor: its contract.
        role: the runtime's word for it (``prompt_tokens``); None if it has none.
        application: the name under which a program gives it; None if it comes with the request or is literal.
        default: what it is without an answer; None if one has to be given.
        literal: it is always the default.
        suppliable: the runtime may make it up itself.
    """

    tensor: Tensor
    role: str | None = None
    application: str | None = None
    default: Any = None
    literal: bool = False
    suppliable: bool = False


@dataclass(frozen=True)
class Promise:
    """What a component is held to: a contract of the standard, and which port has which part in it."""

    id: str
    version: str
    bindings: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    equivalence: str | None = None


@dataclass(frozen=True)
class Component:
    """A graph, or something of the runtime's own (no artifact); roles are those of its ports."""

    artifact: str | None
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    promise: Promise | None = None


@dataclass(frozen=True)
class Cell:
    """A value that goes from step to step.

    Attributes:
        tensor: its contract.
        initializer: the value that it begins as.
        group: the runtime keeps it, as one of this group; None if the workflow does.
        bound: (axis, value): it may change its size there, up to that value; None if it keeps its shape.
    """

    tensor: Tensor
    initializer: str
    group: str | None = None
    bound: tuple[int, str] | None = None


@dataclass(frozen=True)
class Alias:
    """A cell's two ends at a component: input, output, which half of which layer.

    Without an output and a layer, the component reads what another one keeps.
    """

    component: str
    cell: str
    input: str
    output: str | None
    role: str
    layer: int | None


@dataclass(frozen=True)
class Group:
    """Cells that the runtime keeps alike.

    Attributes:
        kind: ``full_attention``, ``sliding_attention``, ``recurrent``.
        axis: where tokens lie; None for a state that each step replaces.
        layout: order of the sizes, a letter each.
        in_place: past and present may be one tensor.
        prefix_reusable: states of a common prefix may serve another request.
        evictable_prefix: what lies behind the window is never looked at again.
        rollback: positions that can be taken back; None if none can.
        aliases: its cells' ends.
    """

    kind: str
    axis: int | None
    layout: str
    in_place: bool
    prefix_reusable: bool
    evictable_prefix: bool
    rollback: int | None
    aliases: tuple[Alias, ...]


@dataclass(frozen=True)
class Invoke:
    """One call: port -> value of its inputs, port -> new value of its outputs."""

    component: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class Emit:
    """Append ``value`` to an output where ``when`` holds, as far as ``valid_length`` goes."""

    value: str
    output: str
    when: str | None = None
    valid_length: str | None = None


@dataclass(frozen=True)
class Carry:
    """What a cell is at the next turn, and at the first one if that is not its initializer."""

    cell: str
    next: str
    initial: str | None = None


@dataclass(frozen=True)
class Loop:
    """Turns of ``steps`` after ``setup``, while ``going`` holds and at most ``most`` of them.

    Attributes:
        generation: it ends as generations do, at an end token; else by ``going`` alone.
        iteration: the value that counts turns.
    """

    setup: tuple[Invoke, ...]
    steps: tuple["Invoke | Emit", ...]
    going: str
    most: str
    carried: tuple[Carry, ...]
    generation: bool
    iteration: str = "loop.iteration"


@dataclass(frozen=True)
class Workflow:
    """Everything that runs: ``serving`` are the values that tell active rows, done rows and accepted lengths."""

    inputs: Mapping[str, Input]
    outputs: Mapping[str, Tensor]
    components: Mapping[str, Component]
    cells: Mapping[str, Cell]
    groups: Mapping[str, Group]
    serving: tuple[str, str, str]
    loop: Loop


@dataclass(frozen=True)
class Tokens:
    """Ids that steer a generation; ``ends`` may be empty."""

    begin: int | None
    ends: tuple[int, ...]
    pad: int | None


@dataclass(frozen=True)
class Speculation:
    """A component that guesses ahead of another one, token by token, out of that one's own keys and values.

    Attributes:
        proposer, target: components.
        embedding_input: of the proposer: the token's embedding, and behind it what is carried.
        logits, carry: outputs of the proposer; the carry is the second half of its next input.
        seed: output of the target that is the first carry.
        target_logits: output of the target that guesses are held against.
        table, scale: initializer of the target that holds the embeddings, and what they are multiplied by.
        shared: groups that the proposer reads.
        rollback: cells that a rejected guess is taken out of.
        width: guesses at a time.
    """

    proposer: str
    target: str
    embedding_input: str
    logits: str
    carry: str
    seed: str
    target_logits: str
    table: str
    scale: float
    shared: tuple[str, ...]
    rollback: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class Document:
    """The whole metadata.

    Attributes:
        workflow: what runs.
        vocab: width of the logits.
        context: positions that the graph covers.
        tokens: that steer a generation.
        tokenizer: what is known of it; None if the package has none.
        defaults: of a generation, in transformers' words.
        speculation: how a drafter guesses; None without one.
    """

    workflow: Workflow
    vocab: int
    context: int
    tokens: Tokens
    tokenizer: Vocabulary | None
    defaults: Mapping[str, Any]
    speculation: Speculation | None = None
