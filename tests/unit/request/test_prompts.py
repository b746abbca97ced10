"""A call tells its kinds of prompts apart: text, messages, token ids, or a batch of them."""

from typing import Any

import numpy as np
import pytest

from rekindle.client.calls.prompts import all_prompts, one_prompt
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt

USER = {"role": "user", "content": "hi"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


def chat(*messages: Any) -> Conversation:
    return Conversation(list(messages), None, {})


def prompts_of(prompt: Any, **options: Any) -> tuple[list[Prompt], bool]:
    """Return the prompts of a call with keywords, for a model with ten tokens, or raise the first error."""
    prompts, batch = all_prompts(prompt, options, vocab_size=10)  # type: ignore[arg-type]
    if errors := [each for each in prompts if isinstance(each, InvalidRequest)]:
        raise errors[0]
    return [each for each in prompts if not isinstance(each, InvalidRequest)], batch


def prompt_of(prompt: Any, **options: Any) -> Prompt:
    """Return the prompt of a call with one."""
    return one_prompt(*prompts_of(prompt, **options))


@pytest.mark.parametrize(
    ("prompt", "expected", "batch"),
    [
        ("hi", ["hi"], False),
        ([USER], [chat(USER)], False),
        ((USER,), [chat(USER)], False),
        ([], [], True),
        ((), [], True),
        ([PARTS], [chat(PARTS)], False),
        (["a", "b"], ["a", "b"], True),
        (("a",), ["a"], True),
        ([[USER], [USER, USER]], [chat(USER), chat(USER, USER)], True),
        (["a", [USER]], ["a", chat(USER)], True),
    ],
)
def test_text_and_messages_are_told_apart_and_a_list_of_either_is_a_batch(
    prompt: Any, expected: list[Any], batch: bool
) -> None:
    assert prompts_of(prompt) == (expected, batch)


@pytest.mark.parametrize(
    ("token_ids", "expected", "batch"),
    [
        ([1, 2], [(1, 2)], False),
        (range(3), [(0, 1, 2)], False),
        (np.array([1, 2]), [(1, 2)], False),
        ([np.int64(1), np.int32(2)], [(1, 2)], False),
        (iter([1, 2]), [(1, 2)], False),
        ([[1], [2, 3]], [(1,), (2, 3)], True),
        ([range(2)], [(0, 1)], True),
        (np.array([[1, 2], [3, 4]]), [(1, 2), (3, 4)], True),
        ([np.array([1]), (2,)], [(1,), (2,)], True),
    ],
)
def test_token_ids_are_one_prompt_and_a_list_of_lists_is_a_batch(
    token_ids: Any, expected: list[tuple[int, ...]], batch: bool
) -> None:
    assert prompts_of(None, token_ids=token_ids) == (expected, batch)


def test_exactly_one_of_the_two_is_given() -> None:
    with pytest.raises(InvalidRequest, match=r"the prompt is None; give a text, .* or token_ids="):
        prompts_of(None)
    for prompt, token_ids in (("hi", [1]), ("", [1])):
        with pytest.raises(InvalidRequest, match="give either a prompt or token_ids, and not both"):
            prompts_of(prompt, token_ids=token_ids)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty; it needs at least one character"),
        (["a", ""], "the prompt is empty; it needs at least one character"),
        ([[]], "messages must have at least one message, got an empty list"),
        (7, "a prompt is a str, a list of .* or a list of either; got 7"),
        (b"hi", "a prompt is a str, a list of .* or a list of either; got b'hi'; decode it: .decode()"),
        (USER, "a prompt is a str, a list of .* or a list of either; got {'role'"),
        ([1, 2], "a prompt is a str, .* or a list of either; got 1; pass token ids as token_ids="),
        (["a", None], "a prompt is a str, a list of .* or a list of either; got None"),
        ([{"role": "user"}], r"messages\[0\] has no 'content'; it has \['role'\]"),
        ([USER, "b"], r"messages\[1\] must be a mapping with role and content, got str"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\['content'\] must be str, got int"),
    ],
)
def test_what_is_no_prompt_is_refused_with_what_was_expected_and_what_came(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        prompts_of(prompt)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "token_ids is empty"),
        ([[]], "token_ids is empty"),
        ([[1], []], "token_ids is empty"),
        ([[1], [10]], "token_ids must be from 0 to 9, got 10"),
        ([1, [2]], "token_ids must be a sequence of integers"),
        (3, "token_ids must be a sequence of integers, got 3"),
        ("12", "token_ids must be a sequence of integers, got '12'"),
    ],
)
def test_what_are_no_token_ids_is_refused_in_a_batch_too(token_ids: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        prompts_of(None, token_ids=token_ids)


def test_errors_of_a_batch_are_in_the_places_of_their_prompts() -> None:
    prompts, batch = all_prompts(["a", "", [USER], 3, [{"role": "user"}]], {}, vocab_size=10)
    assert batch
    assert [type(each) for each in prompts] == [str, InvalidRequest, Conversation, InvalidRequest, InvalidRequest]
    prompts, _ = all_prompts(None, {"token_ids": [[1], [10], []]}, vocab_size=10)
    assert [type(each) for each in prompts] == [tuple, InvalidRequest, InvalidRequest]
    prompts, _ = all_prompts(["a", [USER]], {"continue_final_message": True}, vocab_size=10)
    assert [type(each) for each in prompts] == [InvalidRequest, Conversation]


def test_one_prompt_is_not_a_batch() -> None:
    assert prompt_of("hi") == "hi"
    assert prompt_of(None, token_ids=[1]) == (1,)
    with pytest.raises(InvalidRequest, match="one prompt was expected, got a list of 2; use generate"):
        prompt_of(["a", "b"])
    with pytest.raises(InvalidRequest, match="got a list of 0"):
        prompt_of([])


def test_what_the_caller_changes_afterwards_changes_nothing() -> None:
    messages, tools, variables = [dict(USER)], [TOOL], {"enable_thinking": False}
    prompt = prompt_of(messages, tools=tools, chat_template_kwargs=variables)
    messages[0]["content"] = "changed"
    part = {"type": "text", "text": "hi"}
    in_parts = prompt_of([{"role": "user", "content": [part]}])
    part["text"] = "changed"
    assert in_parts == chat(PARTS)
    for argument in (messages, tools, variables):
        argument.clear()
    assert prompt == Conversation([USER], [TOOL], {"enable_thinking": False})


def test_tools_and_variables_are_for_every_conversation_of_a_batch() -> None:
    variables = {"enable_thinking": False}
    expected = Conversation([USER], [TOOL], variables)
    assert prompt_of([USER], tools=[TOOL], chat_template_kwargs=variables) == expected
    both = prompts_of([[USER], [USER]], tools=[TOOL], chat_template_kwargs=variables)
    assert both == ([expected, expected], True)
    assert prompt_of([USER], chat_template_kwargs=variables) == Conversation([USER], None, variables)


@pytest.mark.parametrize(
    ("prompt", "token_ids", "kind"),
    [("hi", None, "text"), (None, [1], "token ids"), (None, [[1]], "token ids"), ([[USER], "hi"], None, "text")],
)
def test_tools_and_variables_are_refused_where_no_template_reads_them(prompt: Any, token_ids: Any, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"tools= needs a chat template.*prompt of {kind} uses none"):
        prompts_of(prompt, token_ids=token_ids, tools=[TOOL])
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs= needs .*prompt of {kind} uses none.*messages"):
        prompts_of(prompt, token_ids=token_ids, chat_template_kwargs={"a": 1})
    with pytest.raises(InvalidRequest, match=f"continue_final_message= needs .*prompt of {kind} uses none"):
        prompts_of(prompt, token_ids=token_ids, continue_final_message=True)
    bare = prompts_of(prompt, token_ids=token_ids)
    assert prompts_of(prompt, token_ids=token_ids, chat_template_kwargs={}, continue_final_message=False) == bare


def test_a_conversation_is_left_open_where_there_is_something_to_go_on_with() -> None:
    assert prompt_of([USER], continue_final_message=True) == Conversation([USER], None, {}, True)
    with pytest.raises(InvalidRequest, match="continue_final_message must be True or False, got 'yes'"):
        prompt_of([USER], continue_final_message="yes")
    with pytest.raises(InvalidRequest, match="continues the final message, and add_generation_prompt=True starts"):
        prompt_of([USER], continue_final_message=True, chat_template_kwargs={"add_generation_prompt": True})
    call = {"role": "assistant", "tool_calls": [{}]}
    with pytest.raises(InvalidRequest, match="needs a final message with a content"):
        prompt_of([USER, call], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="cannot set 'continue_final_message': give it as an argument"):
        prompt_of([USER], chat_template_kwargs={"continue_final_message": True})


def test_malformed_tools_and_variables_are_refused_at_the_call() -> None:
    with pytest.raises(InvalidRequest, match="tools must be a list"):
        prompt_of([USER], tools=TOOL)
    with pytest.raises(InvalidRequest, match="chat_template_kwargs must be a mapping"):
        prompt_of([USER], chat_template_kwargs=["a"])
