"""A session shows and counts the prompt of a conversation, and continues its last message."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session

pytestmark = pytest.mark.anyio

TEMPLATE = (
    "{% if tools %}{{ tools | length }} tools;{% endif %}{{ mood | default('') }}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
USER = {"role": "user", "content": "Hi"}
OPEN = {"role": "assistant", "content": "He"}


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(byte_tokenizer.backend, chat_template=TEMPLATE)


@pytest.fixture
def chats(tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=tokenizer)) as session:
        yield session


async def test_a_variable_that_the_template_does_not_read_is_told_once(chats: Session) -> None:
    for name in ("thinkng", "effort"):
        with pytest.warns(
            RuntimeWarning,
            match=rf"does not read '{name}'; .*mood, tools, so it has no",
        ):
            text = chats.render([USER], chat_template_kwargs={name: True, "mood": "calm;"})
        assert text == "calm;u:Hi;a:"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await chats.generate([USER], chat_template_kwargs={"effort": "low", "mood": ""}, max_tokens=1)
        await chats.chat().say("Hi", chat_template_kwargs={"thinkng": True}, max_tokens=1)
        async with chats.prefix([USER], chat_template_kwargs={"effort": "low"}) as prefix:
            await prefix.generate("Hi", max_tokens=1)


@pytest.mark.parametrize(
    ("messages", "options", "rendered"),
    [
        ([USER], {}, "u:Hi;a:"),
        ([USER, OPEN], {"continue_final_message": True}, "u:Hi;a:He"),
        ([USER], {"tools": [{"name": "now"}], "chat_template_kwargs": {"mood": "calm;"}}, "1 tools;calm;u:Hi;a:"),
        ([USER], {"chat_template_kwargs": {"add_generation_prompt": False}}, "u:Hi;"),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], {}, "u:Hi;a:"),
    ],
)
async def test_what_is_rendered_and_counted_is_what_is_generated_from(
    chats: Session, tokenizer: Tokenizer, messages: Any, options: dict[str, Any], rendered: str
) -> None:
    assert chats.render(messages, **options) == rendered
    assert chats.count_tokens(messages, **options) == len(rendered)
    expected = expected_tokens(tokenizer.encode(rendered), 4)
    assert (await chats.generate(messages, max_tokens=4, **options)).token_ids == expected
    assert chats.submit(messages, max_tokens=4, **options).result().token_ids == expected
    assert [token for piece in chats.stream(messages, max_tokens=4, **options) for token in piece.token_ids] == [
        *expected
    ]


async def test_every_kind_of_prompt_is_counted_also_one_that_is_too_long(chats: Session) -> None:
    assert chats.count_tokens("hé") == 3
    assert chats.count_tokens(token_ids=[1, 2]) == 2
    assert chats.count_tokens("x" * 5000) == 5000
    with pytest.raises(PromptTooLong, match="5000 tokens"):
        await chats.generate("x" * 5000)


def test_what_is_no_conversation_is_not_rendered_and_what_is_no_prompt_is_not_counted(
    chats: Session, session: Session
) -> None:
    bad: list[tuple[Any, str]] = [
        ("Hi", "messages must be a list of .* mappings, got 'Hi'"),
        ([], "at least one message"),
        (["a"], r"messages\[0\] must be a mapping"),
    ]
    for messages, message in bad:
        with pytest.raises(InvalidRequest, match=message):
            chats.render(messages)
    with pytest.raises(InvalidRequest, match="the model has no tokenizer"):
        session.render([USER])
    with pytest.raises(InvalidRequest, match="the model has no tokenizer"):
        session.count_tokens("Hi")
    with pytest.raises(InvalidRequest, match="unknown keyword 'max_tokens'"):
        chats.count_tokens("Hi", max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="got a list of 2"):
        chats.count_tokens(["a", "b"])  # type: ignore[list-item]


# Prefixes


async def test_a_prefix_with_an_open_message_goes_on_with_it(chats: Session, tokenizer: Tokenizer) -> None:
    async with chats.prefix([USER, OPEN], continue_final_message=True) as prefix:
        assert prefix.tokens == len("u:Hi;a:He")
        for prompt, rendered in (
            (None, "u:Hi;a:He"),
            ("llo", "u:Hi;a:Hello"),
            ([USER], "u:Hi;a:He;u:Hi;a:"),
        ):
            answer = await prefix.generate(prompt, max_tokens=3)
            assert answer.token_ids == expected_tokens(tokenizer.encode(rendered), 3)


async def test_what_continues_a_prefix_may_itself_be_left_open(chats: Session, tokenizer: Tokenizer) -> None:
    async with chats.prefix([USER]) as prefix, chats.prefix("text") as text:
        answer = await prefix.generate([OPEN], max_tokens=3, continue_final_message=True)
        assert answer.token_ids == expected_tokens(tokenizer.encode("u:Hi;a:He"), 3)
        answer = await prefix.generate(max_tokens=3, continue_final_message=True)
        assert answer.token_ids == expected_tokens(tokenizer.encode("u:Hi"), 3)
        with pytest.raises(InvalidRequest, match="a prompt of text uses none"):
            await prefix.generate("llo", continue_final_message=True)
        with pytest.raises(InvalidRequest, match="a prompt of text uses none"):
            await text.generate(continue_final_message=True)


async def test_no_prompts_give_no_answers(chats: Session) -> None:
    nothing: list[str] = []
    assert await chats.generate(nothing) == []
    assert chats.generate_sync(nothing, n=3) == []
    async with chats.prefix([USER]) as prefix:
        assert await prefix.generate(nothing) == []
    assert list(chats.stream_sync(nothing)) == []
    with pytest.raises(InvalidRequest, match="one prompt was expected, got a list of 0"):
        chats.submit([])
