"""`llm rekindle`: commands for the models of the plugin."""

from pathlib import Path
from typing import Any

import click

from llm_rekindle.registry import DEFAULT, PREFIX, Entry, added_models, models_path, write


def add_commands(cli: Any) -> None:
    """Add the group of commands."""
    cli.add_command(rekindle)


@click.group()
def rekindle() -> None:
    """List, add and remove models of Rekindle."""


@rekindle.command()
@click.argument("model")
@click.option("-n", "--name", help="the id without rekindle/, instead of MODEL or the name of its file")
@click.option("aliases", "-a", "--alias", multiple=True, help="a further name of the model; may be repeated")
def add(model: str, name: str | None, aliases: tuple[str, ...]) -> None:
    """Add a model by its name or path, as rekindle.open takes it.

    MODEL is a directory, a .gguf file, owner/name or owner/name/file.gguf on the Hugging Face hub, or a model of
    another program, such as ollama:qwen3. It is downloaded, if it is not here, and its files are checked.
    """
    path = Path(model).expanduser()
    if path.exists():
        model, short = str(path.resolve()), path.resolve().stem if path.is_file() else path.resolve().name
    else:
        short = model
    entry = Entry((name or short).removeprefix(PREFIX), model, list(aliases), _embeds(model))
    others = _entries()
    if entry.name == DEFAULT.name or any(set(aliases) & {other.model_id, *other.aliases} for other in others):
        raise click.ClickException(f"{entry.model_id} or an alias of it names another model: use -n, or other aliases")
    write([*(other for other in others if other.name != entry.name), entry])
    use = f"llm embed -m {entry.model_id} -c" if entry.embeds else f"llm -m {entry.model_id}"
    click.echo(f"{entry.model_id} is added: {use} '...'")


@rekindle.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a model from the list, by its id. Its files stay."""
    entries = _entries()
    name = name.removeprefix(PREFIX)
    if name == DEFAULT.name or all(entry.name != name for entry in entries):
        raise click.ClickException(f"{PREFIX}{name} was not added; llm rekindle models lists the added models")
    write([entry for entry in entries if entry.name != name])
    click.echo(f"{PREFIX}{name} is removed")


@rekindle.command()
def models() -> None:
    """List the models."""
    for entry in _entries():
        kind = "embeddings" if entry.embeds else "text"
        aliases = f" (aliases: {', '.join(entry.aliases)})" if entry.aliases else ""
        click.echo(f"{entry.model_id}{aliases}: {kind}, {entry.model}")


@rekindle.command()
def models_file() -> None:
    """Display the path of the file with the added models."""
    click.echo(models_path())


def _entries() -> list[Entry]:
    try:
        return added_models()
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _embeds(model: str) -> bool:
    """Return True for a model for embeddings, after opening its files.

    Raises:
        click.ClickException: the model cannot be opened, or is for neither text nor embeddings.
    """
    from rekindle import RekindleError
    from rekindle.formats.checkpoints.open import open_checkpoint

    try:
        uses = open_checkpoint(model).uses
    except RekindleError as error:
        raise click.ClickException(str(error)) from error
    if uses.classifier is not None:
        raise click.ClickException(f"{model} classifies texts, and llm has no such models")
    return uses.embedding.pooling is not None or not uses.generates
