"""A drafter beside its target: the same guesses as transformers' own, from the target's own keys and values."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import pairs
from checkpoints import edit_json
from paritas import pair
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.taps import read
from paritas.drafters import read_drafter
from paritas.errors import ParitasError
from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.runtime.assistant import Assistant, read_pairing
from paritas.runtime.drafting import NoDrafts
from paritas.runtime.generate import Generation, Plan, generate
from paritas.runtime.package import open_package
from paritas.runtime.proto import nodes
from paritas.runtime.sampling import Greedy
from paritas.runtime.session import RawSession
from paritas.spec import Attention, Drafter
from paritas.targets import TARGETS
from paritas.verify.drafting import verify_drafter
from paritas.verify.verdict import Verdict
from test_drafting import NoText

KINDS: Mapping[str, Mapping[str, Any]] = {"every-token": {}, "clusters": pairs.CLUSTERS}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target") / "gemma4"
    pairs.tiny_target(folder)
    return folder


@pytest.fixture(scope="module", params=[*KINDS])
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter") / request.param
    pairs.tiny_drafter(folder, **KINDS[request.param])
    return folder


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter") / "clusters"
    pairs.tiny_drafter(folder, **pairs.CLUSTERS)
    return folder


def exported(target: Path, drafter: Path, out: Path, operators: str = "ort") -> Path:
    export(target, out, TARGETS[operators], Options(drafter=drafter))
    return out


@pytest.mark.parametrize("operators", [*TARGETS])
def test_guesses_are_those_of_transformers(target: Path, drafter: Path, tmp_path: Path, operators: str) -> None:
    package = open_package(exported(target, drafter, tmp_path / "package", operators))
    found = verify_drafter(package, open_checkpoint(target), open_checkpoint(drafter))
    assert found.verdict is Verdict.PROVEN, found
    assert found.same_tokens == len(found.lengths) * found.guesses
    assert max(found.lengths) > 2 * 8  # two windows
    found.write(package.folder)
    assert json.loads((package.folder / "evidence" / "drafter.json").read_text())["verdict"] == "proven"


@pytest.mark.parametrize("operators", [*TARGETS])
def test_the_text_is_the_targets_own(target: Path, drafter: Path, tmp_path: Path, operators: str) -> None:
    package = open_package(exported(target, drafter, tmp_path / "package", operators))
    pairing = read_pairing(package.folder)
    assert pairing is not None
    session = RawSession(package, threads=1, also=(pairing.hidden,))

    def tokens(guessing: Any) -> Generation:
        run = Generation(session, NoText(), [2, *range(5, 25)], Plan(Greedy(), frozenset(), 24, 0, guessing))  # pyright: ignore[reportArgumentType]
        list(run)
        return run

    alone, helped = tokens(NoDrafts()), tokens(Assistant(package, pairing, session, threads=1))
    assert helped.tokens == alone.tokens
    assert helped.statistics.drafted > 0


def test_generate_takes_the_packages_own_drafter(target: Path, clusters: Path, tmp_path: Path) -> None:
    package = open_package(exported(target, clusters, tmp_path / "package"))
    texts = set[str]()
    for draft in ("auto", "assistant", "lookup", "none"):
        run = generate(package, "Hi", chat=False, max_new_tokens=9, sampling=Greedy(), draft=draft)  # pyright: ignore[reportArgumentType]
        texts.add("".join(run))
        assert run.runtime.startswith("onnxruntime " if draft in ("auto", "assistant") else "onnxruntime-genai ")
    assert len(texts) == 1
    with pytest.raises(ParitasError, match="drafter-missing"):
        generate(package, "Hi", draft="assistant", runtime="genai")
    (package.folder / "assistant" / "drafter.json").write_text("{}")
    with pytest.raises(ParitasError, match="drafter-incomplete"):
        generate(package, "Hi")
    (package.folder / "assistant" / "drafter.json").unlink()
    with pytest.raises(ParitasError, match="drafter-missing"):
        generate(package, "Hi", draft="assistant")


def attentions(change: Callable[[Attention], Attention]) -> Callable[[Drafter], Drafter]:
    def changed(spec: Drafter) -> Drafter:
        layers = tuple(replace(layer, mixer=change(layer.attention)) for layer in spec.decoder.layers)
        return replace(spec, decoder=replace(spec.decoder, layers=layers))

    return changed


def every_window(change: int) -> Callable[[Attention], Attention]:
    return lambda each: each if each.window is None else replace(each, window=each.window + change)


MUTANTS: Mapping[str, Callable[[Drafter], Drafter]] = {
    "the window without its one key more": attentions(every_window(-1)),
    "one key too many": attentions(every_window(1)),
    "scores scaled as Llama's": attentions(lambda each: replace(each, scale=each.head_dim**-0.5)),
    "queries without their norm": attentions(lambda each: replace(each, qk_norm=None)),
    "the other RoPE": attentions(lambda each: replace(each, rope=replace(each.rope, theta=777.0))),  # type: ignore[arg-type,type-var]
    "norms that add one": lambda spec: replace(
        spec, decoder=replace(spec.decoder, norm=replace(spec.decoder.norm, offset=1.0))
    ),
    "one cluster fewer": lambda spec: replace(spec, clusters=replace(spec.clusters, chosen=4)),  # type: ignore[type-var]
    "no clusters": lambda spec: replace(spec, clusters=None),
}


@pytest.mark.parametrize("mutant", [*MUTANTS])
def test_a_wrong_drafter_is_seen(
    target: Path, clusters: Path, tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "read_drafter", lambda config: MUTANTS[mutant](read_drafter(config)))  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    if mutant in ("no clusters", "queries without their norm"):
        with pytest.raises(ParitasError, match="tensor-unused"):
            exported(target, clusters, tmp_path / "package")
        return
    package = open_package(exported(target, clusters, tmp_path / "package"))
    found = verify_drafter(package, open_checkpoint(target), open_checkpoint(clusters))
    assert found.verdict is Verdict.DIVERGES, found


def test_what_does_not_belong_together_is_refused(target: Path, clusters: Path, tmp_path: Path) -> None:
    for number, (code, change) in enumerate(
        {
            "hidden size of 64": {"backbone_hidden_size": 64},
            "vocabulary of 300": {"vocab_size": 300},
            "2 heads of 32 of sliding_attention": {"head_dim": 32},
        }.items()
    ):
        folder = tmp_path / str(number)
        text = {key: value for key, value in change.items() if key != "backbone_hidden_size"}
        config = json.loads((clusters / "config.json").read_text())
        folder.mkdir()
        for file in clusters.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        edit_json(folder / "config.json", **{k: v for k, v in change.items() if k not in text})
        edit_json(folder / "config.json", text_config=config["text_config"] | text)
        with pytest.raises(ParitasError, match=f"drafter-mismatch.*{code}|config-value-wrong"):
            exported(target, folder, tmp_path / "out")
    with pytest.raises(ParitasError, match="drafter-unsupported"):
        exported(target, target, tmp_path / "out")
    with pytest.raises(ParitasError, match="drafter-alone"):
        export(clusters, tmp_path / "out", TARGETS["ort"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dtype", "quant", "table"),
    [
        ("int4", None, "model.embed_tokens.weight.int4"),
        ("int4", "symmetric=yes,block=16", "model.embed_tokens.weight.int4"),
        ("int8", None, "model.embed_tokens.weight.int8"),
        ("int4", "keep32=embed_tokens", "model.embed_tokens.weight"),
    ],
)
def test_a_drafter_is_given_the_rows_that_a_target_of_integers_takes(
    target: Path, clusters: Path, tmp_path: Path, dtype: str, quant: str | None, table: str
) -> None:
    export(target, tmp_path / "package", TARGETS["ort"], Options(drafter=clusters, recipe=recipe(dtype, quant)))
    package = open_package(tmp_path / "package")
    pairing = read_pairing(package.folder)
    assert pairing is not None
    assert pairing.embedding == table
    session = RawSession(package, threads=1, also=(pairing.hidden,))
    guessing = Assistant(package, pairing, session, threads=1)
    rows = next(node for node in nodes(package.proto) if table in node.input and "Gather" in node.op_type).output[0]
    ids = [0, 7, 200]
    (taken,) = read(package, ids, [rows]).passes  # what the runtime itself dequantises
    want = taken[rows].reshape(len(ids), -1)[:, : guessing.embedded(0).size] * np.float32(pairing.scale)
    assert np.array_equal(np.concatenate([guessing.embedded(token)[0] for token in ids]), want)

    def tokens(drafter: Any) -> Generation:
        run = Generation(session, NoText(), [2, *range(5, 25)], Plan(Greedy(), frozenset(), 24, 0, drafter))  # pyright: ignore[reportArgumentType]
        list(run)
        return run

    alone, helped = tokens(NoDrafts()), tokens(guessing)
    assert helped.tokens == alone.tokens
    assert helped.statistics.drafted > 0


def test_a_target_of_narrow_caches_has_no_drafter(target: Path, clusters: Path, tmp_path: Path) -> None:
    options = Options(drafter=clusters, recipe=recipe("int4"), provider="webgpu")
    with pytest.raises(ParitasError, match=r"drafter-unsupported.*would be fp16") as refusal:
        export(target, tmp_path / "package", TARGETS["ort"], options)
    assert "--ep cpu" in refusal.value.hint
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("operators", [*TARGETS])
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_hidden_states_are_transformers(
    checkpoint: Callable[[str], Path], tmp_path: Path, model: str, operators: str
) -> None:
    from paritas.verify.reference import Reference

    source = checkpoint(model)
    reference = Reference(open_checkpoint(source)).model
    ids = torch.arange(3, 24)[None]
    with torch.inference_mode():
        wanted = reference(input_ids=ids, output_hidden_states=True).hidden_states
        exact = reference.double()(input_ids=ids, output_hidden_states=True).hidden_states
    depth = len(wanted) - 1
    export(source, tmp_path / "bare", TARGETS[operators], Options(tokenizer=False))
    options = Options(tokenizer=False, hidden_states=("0", "last"))
    export(source, tmp_path / "package", TARGETS[operators], options)
    package = open_package(tmp_path / "package")
    names = ("hidden_states.0", f"hidden_states.{depth - 1}")
    assert [value.name for value in onnx.load(package.model, load_external_data=False).graph.output][-2:] == [*names]
    data = [tmp_path / folder / "model.onnx.data" for folder in ("bare", "package")]
    assert data[0].read_bytes() == data[1].read_bytes()  # not a byte of a weight is another one
    session = RawSession(package, threads=1, also=names)
    _, state = session.forward(ids.numpy())
    for name, layer in zip(names, (1, depth), strict=True):
        noise = (wanted[layer].double() - exact[layer]).abs().amax()
        assert (torch.from_numpy(state.also[name]) - wanted[layer]).abs().amax() < 5 * noise


def test_hidden_states_that_there_are_not(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for word in ("-1", "99", "first"):
        with pytest.raises(ParitasError, match="hidden-states-unknown"):
            export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], Options(hidden_states=(word,)))
    with pytest.raises(ParitasError, match="hidden-states-several"):
        export(checkpoint("gemma3n"), tmp_path / "out", TARGETS["ort"], Options(hidden_states=("0",)))
