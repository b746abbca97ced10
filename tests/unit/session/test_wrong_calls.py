"""Every wrong call has a cure: its error names the expected value, the actual one, and the remedy."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import vllm
from rekindle.client.calls.checks import TEMPLATE_NOTE
from rekindle.core.cures import cured
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.name_hints import hint_for
from rekindle.formats.checkpoints.uses import Embedding, Uses
from rekindle.scoring import ranking
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

EMBEDDED = "Did you mean 'smollm2-135m-instruct'?"
OF_A_FILE = (
    "A GGUF file of the hub has its name behind the hub id, probably 'unsloth/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf' here."
)
OF_A_HUB_ID = "A hub id has an owner and a name, as in 'Qwen/Qwen3-4B'; `rekindle models` lists hub ids."
ADDRESS = "Did you mean 'Qwen/Qwen3-4B', the hub id of this address?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smollm2", EMBEDDED),
        ("smolm2", EMBEDDED),
        ("SmolLM2-135M", EMBEDDED),
        ("smollm2-135m-instuct", EMBEDDED),
        ("https://huggingface.co/Qwen/Qwen3-4B", ADDRESS),
        ("http://www.huggingface.co/Qwen/Qwen3-4B/", ADDRESS),
        ("hf.co/Qwen/Qwen3-4B", ADDRESS),
        ("huggingface.co/Qwen/Qwen3-4B/tree/main", ADDRESS),
        ("https://huggingface.co/Qwen/Qwen3-4B?library=x", ADDRESS),
        ("https://hf.co/o/n/tree/v2", "Did you mean 'o/n@v2', the hub id of this address?"),
        ("https://hf.co/o/n/blob/main/a/b.gguf", "Did you mean 'o/n/a/b.gguf', the hub id of this address?"),
        ("llama3.2", "A model of Ollama has a prefix, as in 'ollama:llama3.2'; `rekindle models` lists hub ids."),
        ("qwen3:4b", "A model of Ollama has a prefix, as in 'ollama:qwen3:4b'; `rekindle models` lists hub ids."),
        ("Qwen3-4B", "A hub id has an owner, as in 'owner/Qwen3-4B'; `rekindle models` lists hub ids."),
        ("Qwen/Qwen3-4B-GGUF/tree/main", ""),
        ("", ""),
        ("unsloth/Qwen3-4B-GGUF:Q4_K_M", OF_A_FILE),
        ("hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M", OF_A_FILE),
        ("https://huggingface.co/unsloth/Qwen3-4B-GGUF:Q4_K_M", OF_A_FILE),
        ("hf:unsloth/Qwen3-4B-GGUF:Q4_K_M", OF_A_FILE),
        ("unsloth/Qwen3-4B-GGUF:latest", OF_A_FILE),
        (
            "owner/model:7b",
            "A model of Ollama has a prefix, as in 'ollama:owner/model:7b'; `rekindle models` lists hub ids.",
        ),
        ("ollama/qwen3:4b", "Did you mean 'ollama:qwen3:4b'?"),
        ("hf:Qwen/Qwen3-4B", ADDRESS),
        ("hf://Qwen/Qwen3-4B", ADDRESS),
        ("huggingface/Qwen/Qwen3-4B", ADDRESS),
        ("hf:", OF_A_HUB_ID),
        ("hf:Qwen3-4B", OF_A_HUB_ID),
        ("Auto", "Did you mean 'auto'?"),
        ("AUTO", "Did you mean 'auto'?"),
    ],
)
def test_a_name_of_no_model_has_a_hint(name: str, hint: str) -> None:
    assert hint_for(name) == hint
    if name:
        with pytest.raises(rekindle.ModelNotFound) as raised:
            rekindle.open_sync(name, progress=False)
        first, *ways = str(raised.value).splitlines()
        assert first == f"no model {name!r}. {hint or 'There is no such file or directory, and it is not a hub id.'}"
        assert ways[0] == "A model is one of:"
        assert all(len(way) <= 80 for way in ways), "a line of a terminal holds each way"


def test_a_path_of_nothing_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-q4.gguf").touch()
    reasons = {
        "missing.gguf": f"{tmp_path} has no 'missing.gguf'.",
        "models/x.safetensors": f"{tmp_path / 'models'} has no 'x.safetensors'.",
        "models/tiny-q5.gguf": f"{tmp_path / 'models'} has no 'tiny-q5.gguf'. Did you mean 'models/tiny-q4.gguf'?",
        "./weights/a/model.bin": f"{tmp_path} has no 'weights'.",
        str(tmp_path / "none"): f"{tmp_path} has no 'none'.",
        "~/none-of-these.pth": "has no 'none-of-these.pth'.",
    }
    for name, reason in reasons.items():
        with pytest.raises(rekindle.ModelNotFound) as raised:
            rekindle.open_sync(name, progress=False)
        first = str(raised.value).splitlines()[0]
        assert first.startswith(f"no model {name!r}. There is no such file or directory: ")
        assert first.endswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "cure"),
    [
        ("model.bin", b"PK", "may run code, and are not read. Convert the model"),
        ("model.PTH", b"PK", "may run code, and are not read. Convert the model"),
        ("model.safetensors", b"", "pass its directory instead"),
        ("sha256-0a", b"GGUF", "give it, or a link to it, a name that ends in .gguf"),
    ],
)
def test_a_file_of_another_format_has_a_cure(tmp_path: Path, name: str, content: bytes, cure: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(rekindle.ModelNotFound, match=cure):
        rekindle.open_sync(tmp_path / name, progress=False)


@pytest.mark.parametrize(
    ("files", "cure"),
    [
        (("pytorch_model.bin",), "it has pytorch_model.bin, and files of PyTorch's pickle may run code"),
        (("snapshots/a/config.json",), "it is a model in the hub's cache: open 'owner/name'"),
        (("inner/config.json",), "the folder inner in it has one: pass "),
    ],
)
def test_a_directory_without_a_config_has_a_cure(tmp_path: Path, files: tuple[str, ...], cure: str) -> None:
    directory = tmp_path / "models--owner--name"
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    with pytest.raises(rekindle.ModelNotFound, match=r"no config\.json; ") as raised:
        rekindle.open_sync(directory, progress=False)
    assert cure in str(raised.value)


OF_VLLM = "scripts of vLLM run with `from rekindle.vllm import LLM, SamplingParams`"
LISTED = "rekindle.models() lists the models of this machine, and the command `rekindle models` those that fit it"
DOWNLOADED = 'await rekindle.open("owner/name") downloads a model; rekindle.models() lists those that are here'


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("LLM", f"a model is opened by session = await rekindle.open(model); {OF_VLLM}"),
        ("AsyncLLMEngine", f"a model is opened by session = await rekindle.open(model); {OF_VLLM}"),
        ("version", "it is rekindle.__version__"),
        ("list", LISTED),
        ("list_models", LISTED),
        ("pull", DOWNLOADED),
        ("AutoTokenizer", "session.tokenizer is the tokenizer of an open model"),
        ("from_pretrained", "a model is opened by session = await rekindle.open(model)"),
        ("generate", "it belongs to a session: session = await rekindle.open(), then session.generate"),
        ("chat", "it belongs to a session: session = await rekindle.open(), then session.chat"),
        ("opne", "did you mean open?"),
        ("Sesion", "did you mean Session?"),
        ("SamplingParameters", "did you mean SamplingParams?"),
        ("pipeline", "a model is opened by session = await rekindle.open(model)"),
        ("load", "a model is opened by session = await rekindle.open(model)"),
        ("tokenizer", "it belongs to a session: session = await rekindle.open(), then session.tokenizer"),
        ("embed", "it belongs to a session: session = await rekindle.open(), then session.embed"),
        ("Generations", "did you mean Generation?"),
        ("QueueFul", "did you mean QueueFull?"),
    ],
)
def test_an_unknown_name_of_the_package_has_a_cure(name: str, cure: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(rekindle, name)
    assert str(raised.value) == f"module 'rekindle' has no attribute {name!r}; {cure}"
    assert "_render_traceback_" in vars(raised.value), "a cell shows no line of this package"
    assert not hasattr(rekindle, "_ipython_display_")


def test_an_import_of_an_unknown_name_has_the_same_cure() -> None:
    with pytest.raises(ImportError, match=f"^cannot import 'LLM' from 'rekindle'; .*{OF_VLLM}$") as raised:
        from rekindle import LLM  # noqa: F401
    assert "_render_traceback_" in vars(raised.value)
    assert not hasattr(rekindle, "LLM")
    with pytest.raises(ImportError, match=r"^cannot import 'opne' from 'rekindle'; did you mean open\?$"):
        from rekindle import opne  # noqa: F401


def test_a_module_of_the_package_that_is_not_imported_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rekindle, "server", raising=False)
    with pytest.raises(AttributeError, match=r"no attribute .server.; it is a module: import rekindle\.server$"):
        rekindle.server  # noqa: B018


WRONG_PROMPTS: list[tuple[Any, str]] = [
    (None, "the prompt is None; give a text, a list of messages, a list of either, or token_ids="),
    ("", "the prompt is empty; it needs at least one character"),
    (3, "got 3; pass token ids as token_ids="),
    (b"abc", "got b'abc'; decode it: .decode()"),
    (bytearray(b"a"), "got bytearray(b'a'); decode it: .decode()"),
    (Path("a.txt"), "a.txt'); read the file: .read_text()"),
    ((word for word in "ab"), "; make it a list: list(...)"),
    ({"a"}, "got {'a'}; make it a list: list(...)"),
    (map(str, "ab"), "; make it a list: list(...)"),
    ({"role": "user", "content": "Hi"}, "; put a message into a list"),
    (1.5, "a prompt is a str, a list of {role, content} messages, or a list of either; got 1.5"),
    ([{"role": "user"}], "content"),
    ([{"content": "Hi"}], "role"),
    ([{"role": "usr", "content": "Hi"}], "did you mean 'user'?"),
]


@pytest.mark.parametrize(("prompt", "cure"), WRONG_PROMPTS, ids=range(len(WRONG_PROMPTS)))
def test_a_wrong_prompt_has_a_cure(texts: Session, prompt: Any, cure: str) -> None:
    with pytest.raises(rekindle.InvalidRequest) as raised:
        texts.generate_sync(prompt)
    assert cure in str(raised.value)


WRONG_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda session: session.generate_sync("a", token_ids=[1]), "give either a prompt or token_ids, and not both"),
    (lambda session: session.generate_sync("a", max_new_tokens=3), "here it is max_tokens"),
    (lambda session: session.generate_sync("a", tempreature=3), "did you mean temperature?"),
    (lambda session: session.generate_sync(prompts=["a"]), "the prompt is the first argument, and has no name"),
    (lambda session: session.generate_sync("a", system="b"), "begin the messages with"),
    (lambda session: session.generate_sync("a", stop=3), "stop must be a text or a sequence of texts"),
    (lambda session: session.generate_sync("a", n=0), "n must be an integer from 1 to"),
    (lambda session: session.generate_sync("a", choice="yes"), "choice must be a sequence of texts"),
    (lambda session: session.generate_sync("a", regex="("), "\nerror: unclosed group"),
    (lambda session: session.logit_lens_sync("a"), "takes the result of `await session.look(prompt)`, got str"),
    (lambda session: session.explore("a"), "takes the result of `await session.generate(prompt, logprobs=5)`, got str"),
    (lambda session: session.generate_sync(token_ids="abc"), "token_ids must be a sequence of integers"),
    (lambda session: session.generate_sync(token_ids=[1.5]), "token_ids must be a sequence of integers"),
    (lambda session: session.generate_sync(token_ids=[-1]), "token_ids must be from 0 to"),
    (lambda session: session.embed_sync(3), "pass token ids as token_ids="),
    (lambda session: session.classify_sync("a"), "the model has no head that classifies texts; score() compares"),
    (lambda session: session.rerank_sync("q", "a"), "documents must be a list of texts"),
    (lambda session: session.chat("hello"), "await chat.say('...')"),
    (lambda session: session.chat(sytem="a"), "did you mean system?"),
    (lambda session: session.chat(system_prompt="a"), "here it is system"),
    (lambda session: session.chat(history=[]), "here it is messages"),
    (lambda session: session.generate_sync("a", options={"num_predict": 3}), "its entries are keywords here"),
    (lambda session: session.map_sync("abc"), "map() takes an iterable of texts"),
    (lambda session: session.map_sync([None]), "the item is None; give a text"),
    (lambda session: session.map_sync([{"a": 1}], errors="raise"), "needs a template: pass template="),
]


@pytest.mark.filterwarnings("ignore:each of:RuntimeWarning")
@pytest.mark.parametrize(("call", "cure"), WRONG_CALLS, ids=[cure[:32] for _, cure in WRONG_CALLS])
def test_a_wrong_call_has_a_cure(texts: Session, call: Callable[[Session], Any], cure: str) -> None:
    try:
        (error,) = call(texts)  # of a map, which returns errors in place
    except rekindle.RekindleError as raised:
        error = raised
    assert cure in str(error)
    assert "start: /" not in str(error), "a line of a grammar that the user did not write"


HABITS: list[tuple[str, str]] = [
    ("session('hi')", "'Session' object is not callable; answer = await session.generate"),
    ("session.tokenize", "'Session' object has no attribute 'tokenize'; session.encode(text) gives token ids"),
    ("session.ask", "or session.chat()"),
    ("session.config", "session.model has facts about the model"),
    ("session.history", "chat = session.chat(), as chat.messages"),
    ("session.generate_stream", "async for piece in session.stream(prompt)"),
    ("session.genrate", "did you mean generate?"),
    ("chat('hi')", "'Chat' object is not callable; await chat.say("),
    ("chat[0]", "the messages are chat.messages"),
    ("chat.clear", "a new conversation is another session.chat()"),
    ("chat.regenerate", "await chat.retry() answers the last message anew"),
    ("chat.continue_final_message", "await chat.continue_() goes on with a cut answer"),
    ("answer['text']", "'Generation' object is not subscriptable; the text is answer.text"),
    ("answer[0]", "the text is answer.text"),
    ("answer.choices", "the answer is answer.text"),
    ("answer.outputs", "the answer is answer.text"),
    ("answer.tokens", "they are answer.token_ids"),
    ("answer.model_dump", "answer.to_dict() gives a dict"),
    ("answers.text", "[answer.text for answer in answers]"),
    ("handle.text", "an answer has it: answer = await handle"),
    ("tokenizer.apply_chat_template", "session.render(messages)"),
    ("tokenizer('a')", "tokenizer.encode(text)"),
]


@pytest.mark.parametrize(("expression", "cure"), HABITS, ids=[expression for expression, _ in HABITS])
def test_a_habit_of_another_library_has_a_cure(texts: Session, expression: str, cure: str) -> None:
    handle = texts.submit(token_ids=[1, 2, 3], max_tokens=2)
    answers = texts.generate_sync(token_ids=[[1], [2]], max_tokens=2)
    objects = {"session": texts, "chat": texts.chat(), "handle": handle, "answers": answers}
    objects |= {"answer": handle.result(), "tokenizer": texts.tokenizer}
    with pytest.raises((AttributeError, TypeError)) as raised:
        eval(expression, objects)
    assert cure in str(raised.value)
    assert "_render_traceback_" in vars(raised.value), "a cell shows no line of this package"


def test_cures_leave_the_protocols_of_objects_as_they_are(texts: Session) -> None:
    answer = texts.generate_sync(token_ids=[1, 2], max_tokens=2)
    for each in (texts, texts.chat(), answer, texts.tokenizer):
        assert not hasattr(each, "_repr_html_")
        assert not hasattr(each, "__array__")
        with pytest.raises(TypeError, match="not iterable"):
            iter(each)  # type: ignore[call-overload]
    assert not callable(answer)
    assert copy.copy(answer) == answer == pickle.loads(pickle.dumps(answer))
    broken: Any = type("Broken", (), {"text": property(lambda self: self.none)})
    with pytest.raises(AttributeError, match="no attribute 'none'"):
        getattr(cured({})(broken)(), "text")  # noqa: B009


def test_an_awaited_stream_says_how_it_is_read_and_computes_nothing(texts: Session) -> None:
    async def main() -> None:
        stream: Any = texts.stream("a")
        with pytest.raises(TypeError, match=r"read it by 'async for piece in session\.stream"):
            await stream
        assert stream.handle.record.cancelling

    asyncio.run(main())


def test_a_platform_that_jax_does_not_have_names_the_extra_for_it() -> None:
    with pytest.raises(
        rekindle.ConfigError, match=r"device 'gpu' does not exist; JAX has cpu:0.*'rekindle-llm\[cuda\]'"
    ):
        rekindle.open_sync(device="gpu", progress=False)
    with pytest.raises(rekindle.ConfigError, match=r"rekindle-llm\[tpu\]"):
        rekindle.open_sync(device="tpu:1", progress=False)


def test_completion_of_a_session_lists_what_its_users_call(session: Session) -> None:
    names = {name for name in dir(session) if not name.startswith("_")}
    assert {"generate", "generate_sync", "chat", "cache", "stats", "bench"} <= names
    hidden = {"asleep", "check_room", "enqueue", "enqueue_sync", "error", "metrics_text", "view"}
    assert not hidden & names
    assert all(hasattr(session, name) for name in hidden)


def test_completion_of_a_handle_and_an_answer_lists_what_their_users_call(session: Session) -> None:
    handle = session.submit(token_ids=[1, 2, 3], max_tokens=2)
    for each, public, hidden in (
        (handle, {"cancel", "done", "result", "display"}, {"send", "leave", "withdraw", "wait_ended", "draw_wait"}),
        (handle.result(), {"text", "token_ids", "usage", "branch"}, {"card", "drawn_in", "origin", "without_words"}),
    ):
        assert public <= {*dir(each)}
        assert not hidden & {*dir(each)}
        assert all(hasattr(each, name) for name in hidden)


def noted(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of a session's notes."""
    notes: list[str] = []
    monkeypatch.setattr(session._requests._notes, "_write", notes.append)
    return notes


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_map_of_plain_texts_has_the_note_about_them_once(
    texts: Session, monkeypatch: pytest.MonkeyPatch, *, of_rows: bool
) -> None:
    monkeypatch.setattr(texts.tokenizer, "chat_template", "{{ messages }}")
    notes = noted(texts, monkeypatch)
    conversation = [{"role": "user", "content": "{a}"}]
    assert not notes
    texts.map_sync([{"a": "b"}], template=conversation, max_tokens=1, progress=False)
    assert not notes, "messages have the template"
    for _ in range(2):
        items: Any = [{"a": "b"}, {"a": "c"}] if of_rows else ["b", "c"]
        texts.map_sync(items, template="{a}" if of_rows else None, max_tokens=1, progress=False)
    assert notes == [TEMPLATE_NOTE]


def test_judgements_of_a_model_for_chats_come_with_a_note_once(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "one_token", lambda tokenizer, word: {"yes": 5, "no": 6}[word])
    with fake_session(fake_loaded_engine(fake_limits(max_context=2048), tokenizer=byte_tokenizer)) as session:
        notes = noted(session, monkeypatch)
        for _ in range(2):
            assert len(session.rerank_sync("q", ["a", "b"], progress=False)) == 2
            session.score_sync("q", ["a", "b"], progress=False)
            session.embed_sync("a", pooling="last", progress=False)
        assert [note.partition(":")[0] for note in notes] == ["This model was not trained to rank"]
        for _ in range(2):
            session.embed_sync(["a", "b"], progress=False)
    assert [note.partition(":")[0] for note in notes[1:]] == ["This model was not trained for embeddings"]


def test_an_embedding_model_has_a_note_about_its_likelihoods_alone(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_context=2048), tokenizer=byte_tokenizer)
    uses = Uses(embedding=Embedding(pooling="last"))
    loaded_engine = replace(loaded_engine, checkpoint=replace(loaded_engine.checkpoint, uses=uses))
    with fake_session(loaded_engine) as session:
        notes = noted(session, monkeypatch)
        session.embed_sync("a", progress=False)
        session.rerank_sync("q", ["a", "b"], progress=False)
        for _ in range(2):
            session.score_sync("q", ["a", "b"], progress=False)
            session.perplexity_sync("a text", progress=False)
    assert [note.partition(":")[0] for note in notes] == ["This model was trained for embeddings"]


@pytest.mark.parametrize(
    ("kind", "keyword", "hint"),
    [
        (rekindle.SamplingParams, "max_new_tokens", "here it is max_tokens"),
        (rekindle.SamplingParams, "temprature", "did you mean temperature?"),
        (rekindle.Settings, "max_model_len", "here it is max_context"),
        (rekindle.ServerSettings, "prot", "did you mean port?"),
        (rekindle.Family, "modeltype", "did you mean model_type?"),
        (rekindle.Hosts, "follower", "did you mean followers?"),
        (rekindle.Ray, "adress", "did you mean address?"),
        (rekindle.RepetitionLimit, "long", "did you mean longest?"),
        (rekindle.Steering, "layers", "did you mean layer?"),
        (rekindle.Patch, "layers", "did you mean layer?"),
        (vllm.SamplingParams, "max_new_tokens", "here it is max_tokens"),
        (vllm.StructuredOutputsParams, "choices", "here it is choice"),
        (vllm.PoolingParams, "dimension", "did you mean dimensions?"),
    ],
)
def test_a_wrong_argument_of_a_class_has_a_hint(kind: Any, keyword: str, hint: str) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument") as raised:
        kind(**{keyword: 1})
    assert str(raised.value).endswith(f"; {hint}")
    assert "_render_traceback_" in vars(raised.value), "a cell shows no line of this package"


def test_a_second_place_in_a_call_names_the_keywords(texts: Session) -> None:
    generate: Any = texts.generate_sync
    with pytest.raises(TypeError, match=r"but 3 were given; give the others by name: .*temperature"):
        generate("x", rekindle.SamplingParams())


class Frame:
    """The row access of a data frame of pandas."""

    columns = ("country", "year")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def itertuples(self, index: bool, name: str | None) -> Iterator[tuple[str, int]]:
        assert (index, name) == (False, None)
        return iter([("France", 1), ("Italy", 2)])


class Polars:
    """The row access of a data frame of polars."""

    columns = Frame.columns

    def __len__(self) -> int:
        return 2

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter([{"country": "France", "year": 1}, {"country": "Italy", "year": 2}])

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("iteration of a frame yields columns")


@pytest.mark.parametrize("frame", [Frame(), Polars()], ids=["pandas", "polars"])
def test_a_map_over_a_data_frame_takes_its_rows(texts: Session, frame: Any) -> None:
    answers = texts.map_sync(frame, template="{country} in {year}", max_tokens=2)
    assert answers.prompts == ["France in 1", "Italy in 2"]
    assert answers._records()[1]["country"] == "Italy"
