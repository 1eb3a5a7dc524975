"""tokenizer.json from a GGUF's vocabulary: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``).

A GGUF names the rule that splits text before BPE instead of carrying it. Only rules that were compared with
the original tokenizers, id for id, are in the table; an unknown name is refused, because a wrong rule gives
plausible wrong ids.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing

from paritas.checkpoint.gguf_vocabulary import Kind, Vocabulary
from paritas.errors import ParitasError, Unsupported

_SPACE = "\u2581"
_DIGITS = r"\p{N}{1,3}"
# The pattern of Llama 3's release; Qwen 2's differs in taking digits one by one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + _DIGITS + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Rule:
    """How text is split before byte-level BPE."""

    split: Callable[[], PreTokenizer]
    normalizer: Callable[[], Normalizer] | None = None
    whole_words_first: bool = False


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _words(pattern: str) -> Callable[[], PreTokenizer]:
    def split() -> PreTokenizer:
        by_pattern = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([by_pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return split


_LLAMA3 = _Rule(_words(_WORDS), whole_words_first=True)
_RULES: Mapping[str, _Rule] = {
    "gpt-2": _Rule(_gpt2),
    "smollm": _Rule(_smollm),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Rule(_words(_WORDS.replace(_DIGITS, r"\p{N}")), normalizer=normalizers.NFC),
}


def check_supported(vocabulary: Vocabulary, place: str) -> None:
    """Stop unless the ids can be guaranteed to equal the original's."""
    if vocabulary.model not in ("gpt2", "llama"):
        fact = f"tokenizer model {vocabulary.model!r}; supported are 'gpt2' and 'llama'"
    elif vocabulary.model == "gpt2" and vocabulary.pre not in _RULES:
        fact = f"pre-tokenizer {vocabulary.pre or '(none)'!r}; supported are {', '.join(_RULES)}"
    else:
        return
    raise Unsupported(
        "gguf-tokenizer",
        fact,
        place=place,
        hint="Export from the original Hugging Face checkpoint, whose tokenizer is complete.",
    )


def build_tokenizer(vocabulary: Vocabulary, place: str) -> bytes:
    """The content of tokenizer.json."""
    build = _byte_level if vocabulary.model == "gpt2" else _sentencepiece
    try:
        tokenizer = build(vocabulary)
    except ValueError as error:
        raise ParitasError("gguf-vocabulary", str(error), place=place) from error
    except Exception as error:  # the library's own errors have no class of their own
        raise ParitasError("gguf-vocabulary", f"tokenizers refuses it: {error}", place=place) from error
    tokenizer.post_processor = _template(vocabulary)
    added = [_added(vocabulary, token) for token in _outside_text(vocabulary)]
    tokenizer.add_special_tokens([token for token in added if token.special])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.add_tokens([token for token in added if not token.special])  # pyright: ignore[reportUnknownMemberType]
    return tokenizer.to_str().encode()


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    rule = _RULES[vocabulary.pre]
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    pairs = [(merge[0], merge[1]) for merge in merges if len(merge) == 2]
    if len(pairs) != len(merges):
        raise ValueError(f"{len(merges) - len(pairs)} merges are not two tokens")
    model = models.BPE(_ids(vocabulary.tokens), pairs, ignore_merges=rule.whole_words_first)
    tokenizer = Tokenizer(model)
    if rule.normalizer is not None:
        tokenizer.normalizer = rule.normalizer()
    tokenizer.pre_tokenizer = rule.split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    tokens = [_piece(vocabulary, token) for token in range(len(vocabulary.tokens))]
    unknown = tokens[vocabulary.unk] if vocabulary.unk is not None else None
    model = models.BPE(_ids(tokens), _merges(vocabulary, tokens), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        # Finds nothing, as the normalizer left no spaces; ONNX Runtime GenAI recognises Gemma's tokenizer by it.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
        tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _piece(vocabulary: Vocabulary, token: int) -> str:
    """A token as SentencePiece writes it: converters write its space mark as a space in user-defined tokens."""
    text = vocabulary.tokens[token]
    return text.replace(" ", _SPACE) if vocabulary.kinds[token] == Kind.USER_DEFINED else text


def _merges(vocabulary: Vocabulary, tokens: list[str]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair with the best-scored result; BPE wants that as a ranked list of pairs.

    User-defined pieces come first: SentencePiece never splits them, and a converter's score for them is a
    placeholder. Among equal scores the longer left part comes first, so that a run of spaces grows to the
    longest piece from its left end.
    """
    ids = _ids(tokens)
    found: list[tuple[float, int, int, int, str, str]] = []
    for token, text in enumerate(tokens):
        kind = vocabulary.kinds[token]
        if len(text) < 2 or kind == Kind.UNUSED:
            continue
        score = 0.0 if kind == Kind.USER_DEFINED else vocabulary.scores[token]
        for left, right in _halves(text):
            if left in ids and right in ids:
                found.append((-score, -len(left), -len(right), token, left, right))
    found.sort(key=lambda merge: merge[:4])
    return [(left, right) for *_, left, right in found]


def _halves(text: str) -> Iterator[tuple[str, str]]:
    return ((text[:cut], text[cut:]) for cut in range(1, len(text)))


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {text: token for token, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(text for token, text in enumerate(tokens) if ids[text] != token)
        raise ValueError(f"{len(tokens) - len(ids)} tokens occur twice, such as {twice!r}")
    return ids


def _outside_text(vocabulary: Vocabulary) -> list[int]:
    """Tokens that are found in the text before it is split."""
    kinds = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
    named = set(vocabulary.named.values())
    return [token for token, kind in enumerate(vocabulary.kinds) if kind in kinds or token in named]


def _added(vocabulary: Vocabulary, token: int) -> AddedToken:
    text = _piece(vocabulary, token) if vocabulary.model == "llama" else vocabulary.tokens[token]
    return AddedToken(text, normalized=False, special=vocabulary.special(token))


def _template(vocabulary: Vocabulary) -> TemplateProcessing:
    """Puts the tokens around a text that the model was trained to see there."""
    ends = {
        "bos": vocabulary.bos if vocabulary.add_bos else None,
        "eos": vocabulary.eos if vocabulary.add_eos else None,
    }
    tokens = {name: (vocabulary.tokens[token], token) for name, token in ends.items() if token is not None}

    def around(part: str, segment: int) -> list[str]:
        before = [f"{tokens['bos'][0]}:{segment}"] if "bos" in tokens else []
        after = [f"{tokens['eos'][0]}:{segment}"] if "eos" in tokens else []
        return [*before, f"{part}:{segment}", *after]

    return processors.TemplateProcessing(
        single=around("$A", 0), pair=around("$A", 0) + around("$B", 1), special_tokens=list(tokens.values())
    )
