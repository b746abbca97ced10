"""Count the repeated words in chats of the embedded model, under one or more choices of sampling options.

Each of six talks has six turns, after the messages of people at their first chats; --talks 10 has four more. A row has
the share of runs of eight words with an earlier occurrence in the same answer, the share with one in an earlier answer
of the talk, all tokens, the answers at --max-tokens, the answers with the finish reason "repetition", and the blocks of
Python, valid ones first. --out is the folder of the talks as Markdown, for readers.

    python -m tests.bench.chat_loops                                     # the defaults
    python -m tests.bench.chat_loops --options '{}' --options '{"frequency_penalty": 0.2}'
"""

import argparse
import ast
import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rekindle
from tests.bench.say import say

RUN: Final = 8
SIX: Final[Mapping[str, Sequence[str]]] = {
    "capitals": (
        "What is the capital of France?",
        "And of Italy?",
        "Which of the two is bigger?",
        "Name three more capitals of Europe.",
        "Put all of them into one sentence.",
        "Thanks!",
    ),
    "Python": (
        "Write a Python function that adds two numbers.",
        "What does it return for 3 and 4?",
        "Add a docstring to it.",
        "Now write one for the factorial of n.",
        "Explain recursion as if I'm five.",
        "Write a test for the factorial.",
    ),
    "a boss": (
        "I have a meeting with my boss tomorrow and I'm nervous. Any advice?",
        "Can you make a checklist?",
        "Make it shorter.",
        "What should I wear?",
        "Write an email to move the meeting to Friday.",
        "Make the email friendlier.",
    ),
    "a lighthouse": (
        "Tell me a short story about a lighthouse keeper.",
        "Make it sadder.",
        "What was the keeper's name?",
        "Write the ending as a haiku.",
        "Give the story a title.",
        "Continue the story.",
    ),
    "thumbs": (
        "👍🏽",
        "What does that mean?",
        "Count from 1 to 20.",
        "List ten animals.",
        "Sort them by size.",
        "Which of them live in the sea?",
    ),
    "a tomato": (
        "Is a tomato a fruit or a vegetable?",
        "Explain it as a teacher would.",
        "Translate it to French.",
        "Write me a long story about ancient Greece.",
        "Summarize it in one sentence.",
        "Who ruled there?",
    ),
}
"""Messages by talk."""
MORE: Final[Mapping[str, Sequence[str]]] = {
    "pancakes": (
        "Give me a recipe for pancakes.",
        "I have no eggs.",
        "How many calories is that?",
        "Convert it to grams.",
        "What goes well with it?",
        "Write a shopping list.",
    ),
    "the sea": (
        "Describe the sea in one paragraph.",
        "Now as a poem of four lines.",
        "Which sea is the largest?",
        "Why is it salty?",
        "Name five fish.",
        "Good night!",
    ),
    "JSON": (
        'Write a JSON object for a person named Ada, aged 36, with the keys "name" and "age".',
        "Add a city.",
        "Now a list of three such people.",
        "Make a Markdown table of them.",
        "Who is the oldest?",
        "Delete the first one.",
    ),
    "moving house": (
        "I'm moving to a new city next month. What should I plan?",
        "What about my cat?",
        "How do I tell my landlord?",
        "Write that letter.",
        "What do I pack first?",
        "Sum it all up in three points.",
    ),
}
"""Messages of further talks."""


@dataclass(frozen=True)
class Counts:
    """Counts over answers."""

    runs: int = 0
    again: int = 0
    earlier: int = 0
    tokens: int = 0
    answers: int = 0
    cut: int = 0
    stopped: int = 0
    code: int = 0
    broken: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


Answers = Sequence[rekindle.Generation]


def runs_of(text: str) -> list[tuple[str, ...]]:
    """Return the runs of eight words in a text."""
    words = text.split()
    return list(zip(*(words[place:] for place in range(RUN)), strict=False))


def compiles(code: str) -> bool:
    """Return True for valid Python."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def counts_of(answers: Answers) -> Counts:
    """Return the counts of one talk."""
    total, earlier = Counts(), set[tuple[str, ...]]()
    for answer in answers:
        runs, before, again = runs_of(answer.text), set[tuple[str, ...]](), 0
        for run in runs:
            again += run in before
            before.add(run)
        blocks = re.findall(r"```python\n(.*?)```", answer.text, re.DOTALL)
        total += Counts(
            runs=len(runs),
            again=again,
            earlier=sum(run in earlier for run in runs),
            tokens=len(answer.token_ids),
            answers=1,
            cut=answer.finish_reason == "length",
            stopped=answer.finish_reason == "repetition",
            code=len(blocks),
            broken=sum(not compiles(block) for block in blocks),
        )
        earlier |= before
    return total


async def talk(session: rekindle.Session, messages: Sequence[str], options: Any) -> Answers:
    """Return the answers of one talk."""
    chat = session.chat(**options)
    return [await chat.say(message) for message in messages]


async def measure(choices: Sequence[Mapping[str, Any]], talks: Mapping[str, Sequence[str]], out: Path | None) -> None:
    """Print a row for each choice of options."""
    print(f"{'in the answer':>13} {'in earlier':>10} {'tokens':>7} {'cut':>4} {'stopped':>7} {'code':>5}  options")
    async with rekindle.open(progress=False) as session:
        for number, options in enumerate(choices):
            answers = await asyncio.gather(*(talk(session, messages, options) for messages in talks.values()))
            total = sum(map(counts_of, answers), Counts())
            print(
                f"{total.again / total.runs:13.1%} {total.earlier / total.runs:10.1%} {total.tokens:7}"
                f" {total.cut:4} {total.stopped:7} {total.code - total.broken:2}/{total.code:2}  {json.dumps(options)}",
                flush=True,
            )
            if out is not None:
                path = out / f"talks_{number}.md"
                path.write_text("\n\n".join(paragraphs(talks, answers)))
                say(f"wrote {path}")


def paragraphs(talks: Mapping[str, Sequence[str]], answers: Sequence[Answers]) -> list[str]:
    """Return the talks as paragraphs of Markdown."""
    lines = list[str]()
    for (name, messages), turns in zip(talks.items(), answers, strict=True):
        lines.append(f"# {name}")
        for message, answer in zip(messages, turns, strict=True):
            lines += [f"**> {message}**", answer.text, f"*({len(answer.token_ids)} tokens, {answer.finish_reason})*"]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", action="append", type=json.loads, help="sampling options as JSON; several rows")
    parser.add_argument("--talks", type=int, choices=(6, 10), default=6)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the folder of the talks as Markdown")
    arguments = parser.parse_args()
    common = {"max_tokens": arguments.max_tokens, "seed": arguments.seed}
    asyncio.run(
        measure(
            [{**common, **options} for options in arguments.options or [{}]],
            SIX if arguments.talks == 6 else {**SIX, **MORE},
            arguments.out,
        )
    )
