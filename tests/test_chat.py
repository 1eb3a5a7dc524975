"""Tokenizer, chat templates and streaming, held against transformers on tokenizers made here."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from paritas.errors import ParitasError
from paritas.runtime.chat import ChatTokenizer

TEXTS = [
    "The quick brown fox doesn't jump.\n\n  Twice.",
    "سلام، حال شما چطور است؟ کتاب‌هایم را می‌خواهم.",
    "机器学习 is 有意思的 🙂👩‍👩‍👧‍👦 e\u0301 \U0001f1ee\U0001f1f7",
    "tabs\tand    spaces  ",
]
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {{ message['content'] | trim }}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""
LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "<|im_start|>system\n\nToday Date: " + date_string + "\n\n<|im_end|>" }}
{%- if tools is not none %}{{- "tools" }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n\n'+ message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n\n' }}
{%- endif %}
"""
JSON = """{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ message | tojson(indent=2) }}
    {% else %}
    {% generation %}{{ message | tojson }}{{ eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
{{ pad_token }}|{{ eos_token }}"""
CONVERSATIONS = [
    [{"role": "user", "content": " Who wrote <Hamlet> & why? "}],
    [{"role": "user", "content": text} for text in TEXTS[:1]]
    + [
        {"role": "assistant", "content": TEXTS[2]},
        {"role": "user", "content": TEXTS[1]},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> there"}],
]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]


def byte_level() -> Tokenizer:
    """As Llama 3, Qwen and SmolLM2 have: every byte is a token, so a character may take four."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS[:1], trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Gemma and Llama 2 have: spaces are U+2581, unknown characters fall back to <0xNN>."""
    words = ["\u2581", "a", "e", "h", "i", "l", "o", "p", "\u2581h", "el", "lo", "\u2581hel"]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *words])}
    merges = [("\u2581", "h"), ("e", "l"), ("l", "o"), ("\u2581h", "el")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def save(folder: Path, tokenizer: Tokenizer, template: str | None) -> PreTrainedTokenizerFast:
    """Write ``folder`` as transformers does, with a post-processor that adds the beginning of text."""
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<|im_end|>", pad_token="<pad>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return fast


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("template", [CHATML, GEMMA, LLAMA, JSON], ids=["chatml", "gemma", "llama", "json"])
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "turns", "system"])
def test_chat_ids_are_those_of_transformers(tmp_path: Path, make: Any, template: str, messages: Any) -> None:
    fast = save(tmp_path, make(), template)
    want = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer.open(tmp_path).encode_chat(messages) == want


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", [*TEXTS, "", "<|im_end|>x<bos>"])
def test_ids_and_text_are_those_of_transformers(tmp_path: Path, make: Any, text: str) -> None:
    fast = save(tmp_path, make(), None)
    ours = ChatTokenizer.open(tmp_path)
    assert ours.encode(text) == fast(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == fast(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(fast(text)["input_ids"]) == fast.decode(fast(text)["input_ids"], skip_special_tokens=True)


def test_the_beginning_of_text_is_not_doubled(tmp_path: Path) -> None:
    save(tmp_path, byte_level(), GEMMA)
    ours = ChatTokenizer.open(tmp_path)
    bos = ours.token_id("<bos>")
    assert ours.encode_chat(CONVERSATIONS[0]).count(bos) == 1
    assert ours.encode("text").count(bos) == 1


def test_a_template_may_lie_in_the_config_and_its_tokens_be_objects(tmp_path: Path) -> None:
    save(tmp_path, byte_level(), None)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {
        "bos_token": {"content": "<bos>", "lstrip": False},
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": GEMMA}],
    }
    file.write_text(json.dumps(config))
    ours = ChatTokenizer.open(tmp_path)
    assert ours.encode_chat(CONVERSATIONS[0])[0] == ours.token_id("<bos>")


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_writes_the_whole_text_and_never_half_a_character(tmp_path: Path, make: Any, text: str) -> None:
    save(tmp_path, make(), None)
    ours = ChatTokenizer.open(tmp_path)
    ids = ours.encode(text)
    for cut in (1, 2, len(ids) // 2):
        prompt = ids[:cut]
        while "\ufffd" in ours.decode(prompt):  # a prompt ends with a whole character
            prompt = ids[: len(prompt) + 1]
        stream = ours.stream(prompt)
        pieces = [stream.push(token) for token in ids[len(prompt) :]]
        assert not any("\ufffd" in piece for piece in pieces)
        assert ours.decode(prompt) + "".join(pieces) + stream.finish() == ours.decode(ids)
    assert stream.finish() == ""


def test_a_stream_keeps_the_space_before_its_first_word(tmp_path: Path) -> None:
    save(tmp_path, byte_fallback(), None)
    ours = ChatTokenizer.open(tmp_path)
    prompt, word = ours.encode("hello"), ours.token_id("\u2581hel")
    assert word is not None
    assert ours.stream(prompt).push(word) == " hel"


def test_a_character_that_is_never_completed_is_written_at_the_end(tmp_path: Path) -> None:
    save(tmp_path, byte_level(), None)
    ours = ChatTokenizer.open(tmp_path)
    stream = ours.stream([])
    first = ours.encode("\U0001f642", add_special_tokens=False)[0]
    assert stream.push(first) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("template", "code", "fact"),
    [
        (None, "chat-template-missing", "no chat template"),
        ("{{ raise_exception('only users') }}", "chat-template-refused", "only users"),
        ("{% for m in messages %}", "chat-template-broken", "endfor"),
        ("{{ messages[7].content.upper() + 1 }}", "chat-template-broken", "UndefinedError"),
        ("{{ 1 / 0 }}", "chat-template-broken", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "chat-template-broken", "SecurityError"),
        ("{{ messages.__class__.__mro__ }}", "chat-template-broken", "SecurityError"),
    ],
)
def test_a_bad_template_is_an_error_with_its_place(tmp_path: Path, template: str | None, code: str, fact: str) -> None:
    save(tmp_path, byte_level(), template)
    with pytest.raises(ParitasError) as caught:
        ChatTokenizer.open(tmp_path).encode_chat(CONVERSATIONS[0])
    assert caught.value.code == code
    assert fact in caught.value.fact
    assert caught.value.hint
    assert template is None or "chat_template.jinja" in caught.value.place


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("tokenizer.json", None, "tokenizer-missing"),
        ("tokenizer.json", b'{"model": 3}', "tokenizer-broken"),
        ("tokenizer.json", b"\xff\xfe", "tokenizer-broken"),
        ("tokenizer_config.json", b"{", "package-config-broken"),
        ("tokenizer_config.json", b"[]", "package-config-broken"),
        ("chat_template.jinja", b"\xff", "tokenizer-broken"),
    ],
)
def test_a_bad_tokenizer_is_an_error_with_its_file(tmp_path: Path, name: str, content: bytes | None, code: str) -> None:
    save(tmp_path, byte_level(), CHATML)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ParitasError) as caught:
        ChatTokenizer.open(tmp_path)
    assert caught.value.code == code
    assert caught.value.place.endswith(name)
