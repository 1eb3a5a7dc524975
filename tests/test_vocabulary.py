"""A large tokenizer is looked through without being built: what is wrong with it is seen all the same."""

import json
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import paritas.package.vocabulary as vocabulary
from paritas.errors import ParitasError
from paritas.export import failing_with
from paritas.package.tokenizer import read_tokenizer, reading

LETTERS = [*"abcdefgh", "é", "🦢", "\n", '"', "\\", "1", ",", "1,", '": {', "},", "]"]


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tokenizer as its library saves it, with tokens that look like JSON; read in many pieces."""
    monkeypatch.setattr(vocabulary, "_PIECE", 64)
    merges = [(first, second) for first in LETTERS[:12] for second in LETTERS[:12]]
    tokens = dict.fromkeys(["<s>", *LETTERS, *("".join(pair) for pair in merges)])
    model = models.BPE({token: index for index, token in enumerate(tokens)}, merges, unk_token="<s>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    tokenizer.add_special_tokens(["<s>", "<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return json.loads((tmp_path / "tokenizer.json").read_bytes())


def written(values: Any) -> bytes:
    return json.dumps(values, indent=2, ensure_ascii=False).encode()


def test_a_tokenizer_in_order_is_loaded_without_its_vocabulary(values: dict[str, Any]) -> None:
    whole = written(values)
    apart = vocabulary.taken_apart(whole)
    assert apart is not None
    assert len(apart.rest) < len(whole) / 4
    told = json.loads(apart.rest)
    assert told["model"] == {**values["model"], "vocab": {}, "merges": []}
    assert {**told, "model": None} == {**values, "model": None}
    assert read_tokenizer(whole, "here") == vocabulary.described(whole)


def test_merges_of_older_files_are_read_too(values: dict[str, Any]) -> None:
    pairs = [pair for pair in values["model"]["merges"] if not any(" " in part for part in pair)]
    values["model"]["merges"] = [" ".join(pair) for pair in pairs]
    assert vocabulary.taken_apart(written(values)) is not None


def into(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def damage(values: dict[str, Any]) -> None:
        values["model"][key] = change(values["model"][key])

    return damage


DAMAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a merge of what is no token": into("merges", lambda merges: [*merges, ["a", "zz"]]),
    "a merge of no token and one": into("merges", lambda merges: [["zz", "a"], *merges]),
    "a merge that makes no token": into("merges", lambda merges: [*merges[:50], ["a", "1,"], *merges[50:]]),
    "a merge of three": into("merges", lambda merges: [*merges, ["a", "b", "c"]]),
    "a merge of a number": into("merges", lambda merges: [*merges, ["a", 5]]),
    "an id that is a text": into("vocab", lambda vocab: {**vocab, "aa": "7"}),
    "an id below zero": into("vocab", lambda vocab: {**vocab, "aa": -7}),
    "a token left out": into("vocab", lambda vocab: {token: id_ for token, id_ in vocab.items() if token != "ab"}),
    "a vocabulary that is a list": into("vocab", list),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_tokenizer_out_of_order_is_refused(values: dict[str, Any], damage: str) -> None:
    DAMAGES[damage](values)
    whole = written(values)
    assert vocabulary.taken_apart(whole) is None
    with pytest.raises(Exception, match=r".*"):
        Tokenizer.from_str(whole.decode())
    with pytest.raises(ParitasError, match="tokenizer-corrupt"):
        read_tokenizer(whole, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "Unheard"}},
        {"normalizer": {"type": "NFX"}},
        {"post_processor": {"type": "TemplateProcessing", "single": [], "pair": []}},
        {"added_tokens": [{"id": 1}]},
    ],
)
def test_what_is_wrong_beside_the_vocabulary_is_seen(values: dict[str, Any], change: dict[str, Any]) -> None:
    whole = written({**values, **change})
    assert vocabulary.taken_apart(whole) is not None
    with pytest.raises(ParitasError, match="tokenizer-corrupt"):
        read_tokenizer(whole, "here")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9, 0.999])
def test_a_file_that_is_cut_is_refused(values: dict[str, Any], keep: float) -> None:
    whole = written(values)
    with pytest.raises(ParitasError, match="tokenizer-corrupt"):
        read_tokenizer(whole[: int(len(whole) * keep)], "here")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: json.dumps(values).encode(),  # in one line
        lambda values: written({**values, "model": {**values["model"], "continuing_subword_prefix": "##"}}),
        lambda values: written({**values, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}),
    ],
)
def test_every_other_file_is_loaded_whole(values: dict[str, Any], change: Callable[[Any], bytes]) -> None:
    assert vocabulary.taken_apart(change(values)) is None


def test_a_check_that_fails_stops_the_work_beside_it(values: dict[str, Any]) -> None:
    """A broken tokenizer is told at the next step, not when all weights are written."""
    DAMAGES["a merge of three"](values)
    told: list[int] = []
    with reading({"tokenizer.json": written(values)}, "here") as check:
        wait([check])
        progress = failing_with(check, lambda _, done, __: told.append(done))
        with pytest.raises(ParitasError, match="tokenizer-corrupt"):
            progress("writing weights", 1, 2)
    assert not told


def test_a_check_that_ends_well_stops_nothing(values: dict[str, Any]) -> None:
    told: list[int] = []
    with reading({"tokenizer.json": written(values)}, "here") as check:
        wait([check])
        failing_with(check, lambda _, done, __: told.append(done))("writing weights", 1, 2)
    assert told == [1]
