"""A parameter of zero means the same as in other servers, in Python and over HTTP."""

from typing import Any

import pytest

from rekindle.core.errors import InvalidRequest
from rekindle.server import app
from tests.unit.asgi import ask
from tests.unit.scripted import ANSWER, Serve

TEXT = "Paris is it."
USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": f"<|im_start|>user\nHi<|im_end|>\n{ANSWER}"},
    "/v1/chat/completions": {"messages": USER},
}


@pytest.mark.anyio
async def test_zeros_in_python(serve: Serve) -> None:
    session = serve(TEXT)
    nothing = await session.generate(USER, max_tokens=0)
    assert (nothing.token_ids, nothing.finish_reason, nothing.usage.completion_tokens) == ((), "length", 0)
    prompt_only = await session.generate(USER, max_tokens=0, prompt_logprobs=0)
    assert prompt_only.prompt_logprobs is not None
    assert [each.top for each in prompt_only.prompt_logprobs if each] == [()] * (len(prompt_only.prompt_token_ids) - 1)
    generation = await session.generate(USER, max_tokens=3, logprobs=0)
    assert [each.top for each in generation.logprobs or ()] == [()] * 3
    assert (await session.generate(USER, max_tokens=3, logprobs=None)).logprobs is None
    greedy = await session.generate(USER, max_tokens=3, temperature=0)
    neutral: list[dict[str, Any]] = [
        {"top_p": 0},
        {"top_p": 0, "seed": 5},
        {"top_k": 0},
        {"min_p": 0},
        {"frequency_penalty": 0},
    ]
    for options in neutral:
        assert (await session.generate(USER, max_tokens=3, **options)).token_ids == greedy.token_ids
    for refused in ({"n": 0}, {"repetition_penalty": 0}, {"truncate_prompt_tokens": 0}, {"stop": ""}):
        with pytest.raises(InvalidRequest):
            await session.generate(USER, **refused)


@pytest.mark.anyio
@pytest.mark.parametrize("path", BODIES)
async def test_zeros_over_http(serve: Serve, path: str) -> None:
    application, body = app(serve(TEXT)), BODIES[path]

    async def choice(**fields: Any) -> dict[str, Any]:
        each: dict[str, Any]
        (each,) = (await ask(application, path, {**body, **fields})).json["choices"]
        return each

    nothing = await choice(max_tokens=0)
    assert (nothing.get("text", (nothing.get("message") or {}).get("content")), nothing["finish_reason"]) == (
        "",
        "length",
    )
    for field in ("top_p", "top_k", "min_p", "seed", "temperature", "min_tokens", "presence_penalty"):
        assert TEXT[:3] in str(await choice(max_tokens=3, **{field: 0}))
    assert TEXT in str(await choice(max_tokens=-1))
    for refused in ("n", "best_of", "repetition_penalty"):
        assert (await ask(application, path, {**body, refused: 0})).status == 400
    renamed = await ask(application, path, {**body, "n_predict": 0})
    assert "here it is max_tokens" in renamed.error["message"]


@pytest.mark.anyio
async def test_zero_alternatives_are_the_chosen_tokens_alone(serve: Serve) -> None:
    application = app(serve(TEXT))
    body = {"max_tokens": 2, "logprobs": 0, **BODIES["/v1/completions"]}
    (choice,) = (await ask(application, "/v1/completions", body)).json["choices"]
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [["P"], ["a"]]
    echo = {**body, "max_tokens": 0, "echo": True}
    (choice,) = (await ask(application, "/v1/completions", echo)).json["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == echo["prompt"]
    chat = {"messages": USER, "max_tokens": 2, "logprobs": True, "top_logprobs": 0}
    (choice,) = (await ask(application, "/v1/chat/completions", chat)).json["choices"]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == [[], []]


@pytest.mark.anyio
@pytest.mark.parametrize("most", [0, -1, -2])
async def test_ollamas_zero_tokens_are_no_limit(serve: Serve, most: int) -> None:
    body = {"prompt": "Hi", "stream": False, "options": {"num_predict": most, "top_p": 0, "top_k": 0, "seed": 0}}
    assert (await ask(app(serve(TEXT)), "/api/generate", body)).json["response"] == TEXT
