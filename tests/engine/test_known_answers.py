"""The default model gives right answers to the questions of the README, of its film and of the tutorials."""

import asyncio

import pytest

import rekindle
from tests.documents import ANSWERS

SEEDS = range(3)
FOLLOWS = dict.fromkeys(("And of Italy?", "What is it famous for?"), "What is the capital of France?")
"""The question before another."""


@pytest.mark.wide
@pytest.mark.usefixtures("smollm2_path")
def test_the_default_model_knows_each_answer() -> None:
    async def answers(session: rekindle.Session, question: str) -> list[str]:
        async def answer(seed: int) -> str:
            chat = session.chat(max_tokens=80, seed=seed)
            if before := FOLLOWS.get(question):
                await chat.say(before)
            return (await chat.say(question)).text

        return list(await asyncio.gather(*map(answer, SEEDS)))

    async def all_answers() -> dict[str, list[str]]:
        async with rekindle.open(progress=False, precompile="lazy") as session:
            return {question: await answers(session, question) for question in ANSWERS}

    texts = asyncio.run(all_answers())
    wrong = {question: [each for each in texts[question] if words not in each] for question, words in ANSWERS.items()}
    assert {question: each for question, each in wrong.items() if each} == {}
