"""A target and its drafter, trained here on a page of text: is speculative text greedy text, and what does it save?

    python benchmarks/drafter.py [FOLDER] [--steps 300]

Random models agree on nothing, so nothing of a drafter can be seen on them. This pair is a small Gemma 4 that has
learned a page by heart, and a gemma4_assistant that has learned from it, both in minutes. FOLDER keeps them.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    PreTrainedTokenizerFast,
)

from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.runtime.assistant import Assistant, read_pairing
from paritas.runtime.drafting import Drafter, NoDrafts, PromptLookup
from paritas.runtime.generate import Generation, Plan
from paritas.runtime.package import open_package
from paritas.runtime.sampling import Greedy
from paritas.runtime.session import RawSession
from paritas.targets import TARGETS
from paritas.verify.run import verify

PACKAGES = [*((target, "fp32") for target in TARGETS), ("ort", "int8"), ("ort", "int4")]
VOCAB, HIDDEN, LENGTH, NEW = 512, 128, 96, 64
KINDS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SHAPE: dict[str, Any] = dict(  # noqa: C408
    vocab_size=VOCAB,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=32,
    global_head_dim=64,
    sliding_window=32,
    max_position_embeddings=512,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
)


def tokenizer(text: str, folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE, learned from the text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>", "<bos>"]
    made.train_from_iterator(
        [text], tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return fast


def train_target(ids: torch.Tensor, steps: int) -> Gemma4ForCausalLM:
    """Next tokens of random places of the text."""
    shared = {
        "num_hidden_layers": len(KINDS),
        "layer_types": KINDS,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    }
    per_layer = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
    config = Gemma4TextConfig(**SHAPE, **shared, **per_layer, hidden_size=HIDDEN, intermediate_size=256)
    model = Gemma4ForCausalLM(config)
    rate = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        batch = places(ids, 16)
        loss = model(batch, labels=batch).loss
        descend(rate, loss)
        tell("target", step, steps, loss)
    return model.eval()


def train_drafter(ids: torch.Tensor, target: Gemma4ForCausalLM, steps: int) -> Gemma4AssistantForCausalLM:
    """The target's own choices, one and two tokens ahead, from random places of the text."""
    text = Gemma4TextConfig(
        **SHAPE,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        num_kv_shared_layers=3,
        hidden_size=64,
        intermediate_size=128,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
    )
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=HIDDEN))
    rate = torch.optim.AdamW(model.parameters(), lr=2e-3)
    embed = target.get_input_embeddings()
    for step in range(steps):
        batch = places(ids, 16)
        place = int(torch.randint(8, LENGTH - 3, ()))  # tokens before it are cached; it is the last one chosen
        with torch.no_grad():
            seen = target(batch[:, :place], output_hidden_states=True, return_shared_kv_states=True, use_cache=True)
        carry, loss = seen.hidden_states[-1][:, -1:], torch.zeros(())
        keys = {kind: (key[:, :, :place], value[:, :, :place]) for kind, (key, value) in seen.shared_kv_states.items()}
        for ahead in range(3):
            token = batch[:, place + ahead : place + ahead + 1]
            out = model(
                inputs_embeds=torch.cat([embed(token).detach(), carry], -1),
                position_ids=torch.full((len(batch), 1), place),
                attention_mask=torch.ones(len(batch), place, dtype=torch.long),
                shared_kv_states=keys,
            )
            carry = out.last_hidden_state
            loss = loss + torch.nn.functional.cross_entropy(out.logits[:, 0], batch[:, place + ahead + 1])
        descend(rate, loss)
        tell("drafter", step, steps, loss)
    return model.eval()


def places(ids: torch.Tensor, count: int) -> torch.Tensor:
    """``[count, LENGTH]`` from random places."""
    starts = torch.randint(0, len(ids) - LENGTH, (count,)).tolist()
    return torch.stack([ids[start : start + LENGTH] for start in starts])


def descend(rate: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One step."""
    rate.zero_grad()
    loss.backward()
    rate.step()


def tell(what: str, step: int, steps: int, loss: torch.Tensor) -> None:
    """Now and then."""
    if step % 100 == 0 or step == steps - 1:
        print(f"{what} step {step}: loss {loss.item():.2f}", flush=True)


def pair(folder: Path, steps: int) -> None:
    """Both checkpoints, in bf16."""
    torch.manual_seed(0)
    text = (files("paritas.verify") / "passages.txt").read_text(encoding="utf-8").split("\n\nEn un lugar")[0]
    fast = tokenizer(text, folder / "target")
    ids = torch.tensor(fast(text)["input_ids"])
    target = train_target(ids, steps)
    drafter = train_drafter(ids, target, 3 * steps)  # a step of it is cheap
    target.to(torch.bfloat16).save_pretrained(folder / "target")
    drafter.to(torch.bfloat16).save_pretrained(folder / "drafter")


class NoText:
    """Ids are compared, not words."""

    def stream(self, prompt: Sequence[int]) -> "NoText":
        """Nothing to keep."""
        return self

    def push(self, token: int) -> str:
        """No piece."""
        return ""

    def finish(self) -> str:
        """No rest."""
        return ""


def measure(folder: Path, target: str, dtype: str) -> None:
    """The same prompts with every way to guess, in turn."""
    out, what = folder / f"package-{target}-{dtype}", f"{target} {dtype}"
    options = Options(force=True, drafter=folder / "drafter", recipe=recipe(dtype))
    export(folder / "target", out, TARGETS[target], options)
    print(f"{what}: {verify(out, folder / 'target', power=False, cache=False).verdict.value}", flush=True)
    package = open_package(out)
    pairing = read_pairing(out)
    assert pairing is not None
    session = RawSession(package, also=(pairing.hidden,))
    text = (files("paritas.verify") / "passages.txt").read_text(encoding="utf-8")
    fast = PreTrainedTokenizerFast.from_pretrained(folder / "target")
    prompts = [fast(text[start : start + 120])["input_ids"] for start in (0, 700, 1500, 2600, 4200)]
    ways: dict[str, Drafter] = {
        "none": NoDrafts(),
        "lookup": PromptLookup(),
        "assistant": Assistant(package, pairing, session),
    }
    greedy: list[list[int]] = []
    seconds = dict.fromkeys(ways, 0.0)
    counts = {way: np.zeros(3, int) for way in ways}
    for prompt in prompts:
        for way, drafter in ways.items():
            run = Generation(session, NoText(), prompt, Plan(Greedy(), frozenset(), NEW, 0, drafter))  # pyright: ignore[reportArgumentType]
            started = time.perf_counter()
            list(run)
            seconds[way] += time.perf_counter() - started
            cost = run.statistics
            counts[way] += cost.drafted, cost.accepted, cost.calls
            greedy = [*greedy, run.tokens] if way == "none" else greedy
            assert run.tokens == greedy[-1], f"{way} guesses changed the text"
    for way, (drafted, accepted, calls) in counts.items():
        share = f"{accepted / drafted:4.0%}" if drafted else "   -"
        speed = seconds["none"] / seconds[way]
        print(
            f"{what} {way:9}: {len(prompts)} x {NEW} tokens equal greedy's, {calls:3} calls, "
            f"{accepted:3} of {drafted:3} guesses right ({share}), {speed:.2f} times as fast as none"
        )


def main() -> None:
    """Train what is not there, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        if not (folder / "drafter").exists():
            (folder / "target").mkdir(parents=True, exist_ok=True)
            pair(folder, asked.steps)
        for target, dtype in PACKAGES:
            measure(folder, target, dtype)


if __name__ == "__main__":
    main()
