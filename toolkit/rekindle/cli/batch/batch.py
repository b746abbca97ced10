"""The command `batch`: answer a file of requests into another file, and go on after an interrupt."""

import asyncio
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

import rekindle
from rekindle.cli import requirements
from rekindle.cli.batch.lines import BatchContents, BatchFile, batch_file, check_lines, read_lines, wrong_lines
from rekindle.cli.chat.wrapping import print_note
from rekindle.core.errors import ConfigError, InvalidRequest, ModelNotFound, StorageError, not_installed
from rekindle.core.request.checks import integer, preview
from rekindle.core.words import quantity
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.mapping.call import default_window
from rekindle.mapping.shaping import Shaping
from rekindle.session.session import Session

if TYPE_CHECKING:
    from rekindle.cli.batch.answers import BatchAnswers
    from rekindle.cli.batch.running import FileRun

MOST_IN_FLIGHT: Final = 10_000
"""Most lines in flight: each has a request of the engine, or waits for one."""


def batch(arguments: Namespace) -> int:
    """Check both files, open the model, and answer the lines without an answer; return 1 if a line has an error."""
    try:
        from rekindle.cli.batch.answers import check_output
    except ImportError as error:
        raise not_installed("the batch", "server", error) from error
    output = Path(arguments.answers)
    if arguments.window is not None:
        integer("window", arguments.window, 1, MOST_IN_FLIGHT)
    with ExitStack() as files:
        with _file_errors():
            check_output(Path(arguments.requests), output)
            source = files.enter_context(batch_file(arguments.requests))
            contents = check_lines(source)
        return _answer_file(arguments, source, contents, output)


def _answer_file(arguments: Namespace, source: BatchFile, contents: BatchContents, output: Path) -> int:
    """Open the model, and answer the lines of a file without wrong ones; see `batch`."""
    from rekindle.cli.batch.answers import BatchAnswers
    from rekindle.server.models.served import short_name

    model = arguments.model or _model_in(source, contents, [*arguments.name, *dict(arguments.adapter)])
    names = list(dict.fromkeys([*arguments.name, short_name(model), model]))
    _check_models(source, contents, [*names, *dict(arguments.adapter)])
    answers = BatchAnswers(output, {"model": short_name(model), "names": ", ".join(names)})
    with _open(arguments, model) as session, _file_errors():
        return _answer(arguments, source, session, names, answers, contents.count)


def _open(arguments: Namespace, model: str) -> Session:
    """Open the model for many requests, with the settings of a server."""
    try:
        return rekindle.open_sync(
            model,
            progress=not arguments.quiet,
            revision=arguments.revision,
            chat_template=arguments.chat_template,
            adapters=dict(arguments.adapter),
            **requirements.settings_of(arguments),
        )
    except ModelNotFound as error:
        if arguments.model is not None:
            raise
        hint = f"The lines of {arguments.requests} name it; for another one, give -m MODEL --name {model}"
        raise ModelNotFound(f"{error}\n{hint}") from error


def _answer(
    arguments: Namespace,
    source: BatchFile,
    session: Session,
    names: Sequence[str],
    answers: "BatchAnswers",
    count: int,
) -> int:
    """Answer the lines in an open session, and write the output."""
    from rekindle.cli.batch.running import FileRun
    from rekindle.cli.serve import log_to_stderr
    from rekindle.server.application import app

    log_to_stderr(quiet=arguments.quiet)
    shaping, began = Shaping(session._engine), perf_counter()
    adapters = {f"adapter {name}": shaping.adapter(name) for name, _ in arguments.adapter}
    window = arguments.window or default_window(session._engine.facts.limits)
    run: FileRun | None = None
    try:
        answers.open(shaping.content(None) | adapters)
        # All lines are compared with the answers of earlier runs before one is asked.
        stored = {line.place: answer for line in read_lines(source) if (answer := answers.status(line)) is not None}
        run = FileRun(session, app(session, name=names), answers, shaping.weights, stored.values(), count)
        lines = (line for line in read_lines(source) if line.place not in stored)
        asyncio.run(run.run(lines, window, progress=not arguments.quiet))
    except BaseException:
        if run is not None and run.done and not arguments.quiet:
            answered = run.done - len(answers.failed)
            print_note(
                f"{answered:,} of {quantity(count, 'line')} answered, in {answers.part}; the same command goes on"
            )
        raise
    finally:
        answers.close()
    answers.finish(read_lines(source))
    if not arguments.quiet:
        print_note(_summary(run, perf_counter() - began, arguments.answers))
    if answers.failed:
        words = quantity(len(answers.failed), "line")
        print_note(f"the server failed at {words}, which the same command asks again; {answers.part} has the others")
    return int(any(status >= 400 for status in run.statuses))


def _summary(run: "FileRun", seconds: float, output: str) -> str:
    """Return a line about a complete batch: lines by status, and those of earlier runs."""
    errors = {status: count for status, count in sorted(run.statuses.items()) if status >= 400}
    by_status = ", ".join(f"{count:,} with status {status}" for status, count in errors.items())
    parts = [f"{quantity(run.done, 'line')} in {output}, in {seconds:.1f} s"]
    parts += [f"{run.stored:,} answered by an earlier run"] if run.stored else []
    parts += [f"{quantity(sum(errors.values()), 'error')}: {by_status}"] if errors else []
    return "; ".join(parts)


def _model_in(source: BatchFile, contents: BatchContents, others: Sequence[str]) -> str:
    """Return the model of the lines, or the default one.

    Args:
        source: the file of the lines.
        contents: the contents of the file.
        others: other names, of --name and of adapters.

    Raises:
        ConfigError: the lines have several.
    """
    names = [name for name in contents.models if name not in others]
    if len(names) > 1:
        raise ConfigError(
            f"the lines of {source.name} name several models, {', '.join(map(preview, names))}: give the model with "
            "-m, and with --name the names that it answers to"
        )
    return names[0] if names else NAME


def _check_models(source: BatchFile, contents: BatchContents, names: Sequence[str]) -> None:
    """Raise InvalidRequest for lines with another model."""
    wrong = [
        f"line {number}: there is no model {preview(name)}; there is {', '.join(map(repr, dict.fromkeys(names)))}, and "
        f"--name {name} adds this name"
        for name, number in contents.models.items()
        if name not in names
    ]
    if wrong:
        raise wrong_lines(source, wrong)


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise an error of the operating system about a file as one with a message."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no file {error.filename}; give the path of the requests") from error
    except OSError as error:
        raise StorageError(f"a file of the batch cannot be used: {error}") from error
