"""Prompts become the token ids of transformers."""

import json
import string
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from rekindle import Generation
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.errors import CheckpointError, InvalidRequest, UnsupportedModel
from rekindle.core.messages import Conversation
from rekindle.core.text.tokenizer import Tokenizer, wrap
from rekindle.formats.checkpoints.gguf.tokenizer import gguf_tokenizer
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.rendering.chat import render
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TEXTS = ["Hello  world's 12345 days\n\n  end ", "naïve — 東京 🚀", "a<|end|>b", "IT'S + 3.14 == ½", "\t x\r\n y"]


def metadata(**changes: Any) -> dict[str, Any]:
    """Make a byte-level vocabulary with two merges, an ordinary added token, and two special ones."""
    tokens = [*BYTES, "he", "hel", "<think>", "<|start|>", "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [4, 3, 3],
        "tokenizer.ggml.merges": ["h e", "he l"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def rebuilt(**changes: Any) -> Tokenizer:
    tokenizer = gguf_tokenizer(metadata(**changes), "here")
    assert tokenizer is not None
    return tokenizer


def test_every_golden_prompt_gives_its_ids(smollm2_tokenizer: Tokenizer, smollm2_goldens: list[dict[str, Any]]) -> None:
    assert len(smollm2_goldens) == 8
    for golden in smollm2_goldens:
        if golden["kind"] == "chat":
            ids = smollm2_tokenizer.encode_chat(golden["rendered"])
        else:
            ids = smollm2_tokenizer.encode(golden["prompt"])
        assert ids == golden["prompt_ids"]
        assert smollm2_tokenizer.decode(golden["new_ids"]) == golden["text"]


def test_every_golden_chat_is_rendered_alike(
    smollm2_tokenizer: Tokenizer, smollm2_goldens: list[dict[str, Any]]
) -> None:
    for golden in smollm2_goldens:
        if golden["kind"] == "chat":
            tokenizer = smollm2_tokenizer
            assert tokenizer.chat_template is not None
            rendered = render(golden["messages"], tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
            assert rendered == golden["rendered"]


def test_the_default_models_tokens(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.vocab_size == 49152
    assert (smollm2_tokenizer.bos_token, smollm2_tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2_tokenizer.special_ids == frozenset(range(17))


WAYS = ["gpt-2", "smollm", "llama-bpe", "qwen2", "hunyuan-dense", "deepseek-llm", "seed-coder", "tekken", "gpt-4o"]
WAYS += ["default"]
"""One name of each way of cutting text."""


@pytest.mark.parametrize("pre", WAYS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_every_way_of_cutting_it(pre: str, text: str) -> None:
    tokenizer = rebuilt(pre=pre, add_bos_token=False)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["Don", "'t", " pay", " 12345", "!!", "\n\n ", " Now"]),
        ("smollm", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", "!!", "\n\n ", " Now"]),
        ("llama-bpe", ["Don", "'t", " pay", " ", "123", "45", "!!\n\n", " ", " Now"]),
        ("qwen2", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", "!!\n\n", " ", " Now"]),
        ("default", ["Don", "'", "t", " pay", " ", "123", "45", "!!", "\n\n ", " Now"]),
        ("starcoder", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", "!!", "\n\n ", " Now"]),
        ("dbrx", ["Don", "'t", " pay", " ", "123", "45", "!!\n\n", " ", " Now"]),
        ("hunyuan-dense", ["Don", "'t", " pay", " ", "123", "45", "!!\n\n", " ", " Now"]),
        ("deepseek-llm", ["Don", "'", "t", " pay", " ", "1", "2", "3", "4", "5", "!!", "\n", "\n", " Now"]),
        (
            "deepseek-llm",
            ["\u0416\u0416", " \u00e9", "t", "\u00e9", "\u4e2d\u6587", "\u3002", "\uff01", "x", "  \u0561\u0562"],
        ),
        ("seed-coder", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", "!!", "\n\n", " ", " Now"]),
        ("tekken", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", "!!\n\n", " ", " Now"]),
        ("tekken", ["Camel", "Case", " HTTPServer", " x", "//\n"]),
        ("gpt-4o", ["Don't", " pay", " ", "123", "45", "!!\n\n", " ", " Now"]),
        ("gpt-4o", ["Camel", "Case", " HTTPServer", " x", "//\n"]),
        ("glm4", ["CamelCase", " HTTPServer", " x", "//\n"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    cuts = rebuilt(pre=pre).backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cuts] == pieces


def test_the_smollm_way_is_the_gpt2_way_behind_single_digits() -> None:
    ours = rebuilt(pre="smollm").backend.pre_tokenizer
    theirs = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in [*TEXTS, "12³ Ⅷ ٣٤ x\u00a0y"]:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@pytest.mark.parametrize("pre", ["qwen2", "stablelm2", "command-r"])
def test_only_some_compose_characters(pre: str) -> None:
    assert rebuilt(pre=pre).encode("e\u0301") == rebuilt(pre=pre).encode("é")
    assert rebuilt(pre="gpt-2").encode("e\u0301") != rebuilt(pre="gpt-2").encode("é")


def test_special_tokens_are_found_in_text_and_left_out_of_it() -> None:
    tokenizer = rebuilt()
    start, end = (tokenizer.backend.token_to_id(token) for token in ("<|start|>", "<|end|>"))
    ids = tokenizer.encode_chat("<|start|>hel<think><|end|>")
    assert (ids[0], ids[-1], len(ids)) == (start, end, 4)
    assert tokenizer.decode(ids) == "hel<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>hel<think><|end|>"
    assert tokenizer.special_ids == {start, end}


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({}, 0, 0),
        ({"add_bos_token": True}, 1, 0),
        ({"add_bos_token": True, "add_eos_token": True}, 1, 1),
        ({"pre": "llama-bpe"}, 1, 0),
        ({"pre": "llama-bpe", "add_bos_token": False}, 0, 0),
    ],
)
def test_a_raw_prompt_gets_the_ends_that_the_file_asks_for(changes: dict[str, Any], before: int, after: int) -> None:
    tokenizer = rebuilt(**changes)
    start, end = (tokenizer.backend.token_to_id(token) for token in ("<|start|>", "<|end|>"))
    assert tokenizer.encode("hel") == [start] * before + [tokenizer.backend.token_to_id("hel")] + [end] * after
    assert tokenizer.encode_chat("hel") == [tokenizer.backend.token_to_id("hel")]


def test_llama3_takes_a_word_whole_without_merging() -> None:
    vocabulary = [*BYTES, "xyz"]
    changes = {"tokens": vocabulary, "token_type": None, "merges": ["x y"], "bos_token_id": None, "eos_token_id": None}
    with pytest.raises(CheckpointError, match="do not fit together"):
        rebuilt(**changes)
    changes["merges"] = []
    assert rebuilt(**changes, pre="llama-bpe").encode("xyz") == [len(BYTES)]
    assert len(rebuilt(**changes, pre="gpt-2").encode("xyz")) == 3


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"model": "t5"}, CheckpointError, "needs 261 scores in tokenizer.ggml.scores, got none"),
        ({"model": "rwkv"}, UnsupportedModel, r"kind 'rwkv' \(RWKV's\), but only 'gpt2'.*'t5'.*Hugging Face directory"),
        ({"tokens": None}, CheckpointError, "missing tokenizer.ggml.tokens"),
        ({"pre": "unheard-of"}, UnsupportedModel, "'unheard-of', but only .*smollm"),
        ({"merges": ["whole"]}, CheckpointError, "got 'whole'"),
        ({"merges": None}, CheckpointError, "missing tokenizer.ggml.merges"),
        ({"eos_token_id": 100_000}, CheckpointError, "eos_token_id must be one of .* got 100000"),
        ({"token_type": [1]}, CheckpointError, "1 token types"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_says_why(
    changes: dict[str, Any], kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        gguf_tokenizer(metadata(**changes), "here")


def test_a_file_without_a_tokenizer_is_served_by_ids() -> None:
    assert gguf_tokenizer({}, "here") is None
    assert gguf_tokenizer({"tokenizer.ggml.model": "none"}, "here") is None


def write_tokenizer(directory: Path, config: dict[str, Any] | None, template_file: str | None = None) -> None:
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(BYTES)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if template_file is not None:
        (directory / "chat_template.jinja").write_text(template_file)


ENDS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        (None, 1, 0),
        (ENDS, 1, 0),
        (ENDS | {"add_bos_token": False}, 0, 0),
        (ENDS | {"add_bos_token": True, "add_eos_token": True}, 1, 1),
    ],
)
def test_the_config_overrules_the_ends_of_tokenizer_json(
    config: dict[str, Any] | None, before: int, after: int, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, config)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert len(tokenizer.encode("long enough")) == 11 + before + after  # the prompt is neither cut nor padded
    assert tokenizer.encode("x")[:before] == [256] * before
    assert tokenizer.encode("x")[before + 1 :] == [257] * after
    assert len(tokenizer.encode_chat("x")) == 1


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (None, None, None),
        ({"chat_template": "one"}, None, "one"),
        ({"chat_template": "one"}, "two", "two"),
        ({"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]}, None, "b"),
    ],
)
def test_the_chat_template_is_found(
    config: dict[str, Any] | None, file: str | None, expected: str | None, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, ENDS | (config or {}), file)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.chat_template == expected
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_a_template_comes_from_the_tokenizer_or_else_from_a_processor(tmp_path: Path) -> None:
    for name, content, expected in (
        ("processor_config.json", {"chat_template": "of the newest processors"}, "of the newest processors"),
        ("chat_template.json", {"chat_template": "of a processor"}, "of a processor"),
        ("tokenizer_config.json", {"chat_template": {"default": "of the tokenizer"}}, "of the tokenizer"),
    ):
        if name == "processor_config.json":
            write_tokenizer(tmp_path, {})
        (tmp_path / name).write_text(json.dumps(content))
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer is not None
        assert tokenizer.chat_template == expected
    (tmp_path / "chat_template.jinja").write_text("of the file")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.chat_template == "of the file"


def test_a_template_for_tools_is_found_by_its_name_and_written_with_tools_alone(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools }}"}]
    write_tokenizer(tmp_path, {"chat_template": templates})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("plain", "{{ tools }}")
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("of a file {{ tools }}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.tool_template == "of a file {{ tools }}"
    of_gguf = gguf_tokenizer({**metadata(), "tokenizer.chat_template.tool_use": "{{ tools }}"}, "here")
    assert of_gguf is not None
    reader = PromptReader(of_gguf, 512, 64)
    chat = Conversation([{"role": "user", "content": "Hi"}], [{"name": "f"}], {})
    assert reader.rendered(chat) == "[{'name': 'f'}]"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_tokenizer_file_is_named(name: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, {})
    (tmp_path / name).write_text("{")
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(tmp_path)


def test_a_lone_surrogate_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate .* at character 2"):
        rebuilt().encode("ab\ud800")


def with_bos() -> Tokenizer:
    """Make a tokenizer of letters that puts a special token before every text and another behind it."""
    letters = string.ascii_lowercase
    backend = Backend(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in ("<s>", "</s>")])
    wrap(backend, "<s>", "</s>")
    return Tokenizer(backend, "<s>{{ messages[0].content }}", "<s>", "</s>")


def test_a_text_that_begins_with_the_tokens_before_every_text_has_them_once() -> None:
    tokenizer = with_bos()
    bos, eos = 26, 27
    assert tokenizer.encode("ab") == [bos, *tokenizer.encode_chat("ab"), eos]
    assert tokenizer.encode("<s>ab") == tokenizer.encode_chat("<s>ab") == [bos, *tokenizer.encode_chat("ab")]
    assert tokenizer.encode("a<s>b")[0] == bos
    assert tokenizer.encode("<s><s>ab").count(bos) == 2, "what was written twice stays"


def test_a_rendered_chat_and_a_text_with_its_own_tokens_are_tokenized_as_they_are() -> None:
    tokenizer = with_bos()
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=tokenizer)) as session:
        ask: dict[str, Any] = {"max_tokens": 1}
        messages = [{"role": "user", "content": "ab"}]
        chat = session.generate_sync(messages, **ask)
        rendered = session.render(messages)
        assert session.generate_sync(rendered, **ask).prompt_token_ids == chat.prompt_token_ids
        bare = session.generate_sync("ab", add_special_tokens=False, **ask)
        assert list(bare.prompt_token_ids) == session.encode("ab")
        several = session.generate_sync(["ab", "<s>ab"], add_special_tokens=False, **ask)
        assert [each.prompt_token_ids for each in several] == [bare.prompt_token_ids, chat.prompt_token_ids]


def test_a_long_prompt_is_cut_before_its_last_tokens_or_after_its_first_ones() -> None:
    tokenizer, bos = with_bos(), 26
    with fake_session(fake_loaded_engine(fake_limits(max_context=16), tokenizer=tokenizer)) as session:

        def cut(prompt: Any, most: int, **options: Any) -> list[int]:
            answer = session.generate_sync(prompt, truncate_prompt_tokens=most, **{"max_tokens": 2, **options})
            return list(answer.prompt_token_ids)

        messages = [{"role": "user", "content": "abcdefgh"}]
        letters = session.encode("abcdefghijklmnopqrstuvwxyz")
        assert cut(messages, 4) == [bos, *letters[5:8]]
        assert cut(messages, 9) == [bos, *letters[:8]], "nothing is cut"
        assert cut(messages, 3, truncation_side="right") == [bos, *letters[:2]]
        assert cut("abcdefgh", 3, add_special_tokens=False) == letters[5:8]
        assert cut("abcdefgh", 1) == [27], "the end of a text has a token of its own"
        long = [{"role": "user", "content": "abcdefghijklmnopqrstuvwxyz"}]
        assert cut(long, -1) == [bos, *letters[13:]], "two of 16 tokens stay free"
        assert cut(long, -1, max_tokens=0) == [bos, *letters[11:]]
        for most in (8, 9, 5000, None):
            assert cut(long, -1, max_tokens=most) == [bos, *letters[19:]], "half of the context is for the prompt"
        assert cut(messages, -1, max_tokens=7) == [bos, *letters[:8]]
        almost = [{"role": "user", "content": "abcdefghijklmn"}]
        assert cut(almost, -1, max_tokens=None) == [bos, *letters[:14]], "what fits stays whole"
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens must be at least 1, or -1 for as many"):
        session.generate_sync("a", truncate_prompt_tokens=0)


@pytest.mark.anyio
async def test_a_text_at_which_the_tokenizer_breaks_down_fails_its_request_alone() -> None:
    backend = rebuilt().backend
    beyond = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([beyond, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    loaded = fake_loaded_engine(fake_limits(), tokenizer=Tokenizer(backend))
    with fake_session(loaded) as session:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="the model's tokenizer cannot take this text"):
                await session.generate("x" * 40, max_tokens=1)
            with pytest.raises(InvalidRequest, match="the model's tokenizer cannot take this text"):
                session.encode("x" * 40)
            with pytest.raises(InvalidRequest, match="1 of 2 prompts cannot be served"):
                await session.generate(["aaa", "x" * 40], max_tokens=1)
            failed, answered = await session.generate(["x" * 40, "aaa"], max_tokens=1, errors="return")
            assert isinstance(failed, InvalidRequest)
            assert isinstance(answered, Generation)
