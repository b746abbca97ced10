"""Saving of a session's model with the codes of its weights, while requests run."""

from os import PathLike
from pathlib import Path
from threading import Event

from rekindle.client.engine_client import OpenEngine
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.threads import Work
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.formats.saving.saving import SavedFormat, SavedModel, save_model
from rekindle.notebook.progress.bars import ProgressBars, draw_reports


def save_quantized(
    engine: OpenEngine,
    path: str | PathLike[str],
    style: SavedFormat | None,
    overwrite: bool,
    progress: bool,
) -> Waits[SavedModel]:
    """See `Session.save_quantized`."""
    _check(engine)
    reports: Feed[Progress] = Feed()
    results: list[SavedModel] = []
    errors: list[BaseException] = []
    stopped = Event()

    def report(each: Progress) -> None:
        if stopped.is_set():
            raise StorageError("the saving was stopped, and nothing is left of the new model")
        reports.put(each)

    def work() -> None:
        try:
            checkpoint, kinds = engine.facts.checkpoint, engine.facts.deployment.form.kind_of
            results.append(save_model(checkpoint, kinds, Path(path), report, style=style, overwrite=overwrite))
        except BaseException as error:
            errors.append(error)
        reports.close()

    Work(work, "saving", stopped.set)
    try:
        with ProgressBars(progress) as bars:
            yield from draw_reports(reports, bars)
    except BaseException:
        stopped.set()
        raise
    if errors:
        raise errors[0]
    return results[0]


def _check(engine: OpenEngine) -> None:
    """Raise InvalidRequest unless the weights in use are the codes of the opened files."""
    source = engine.facts.source
    if engine.facts.deployment.form.quantize is None:
        raise InvalidRequest(
            f'save_quantized() writes the codes of quantize=, and {source} was opened without it: add quantize="int4" '
            'or "int8" to open(), or run `rekindle quantize`'
        )
    if engine.client.weights.version or not engine.client.weights.present:
        raise InvalidRequest(
            "save_quantized() reads the files of the opened model again, and update_weights has replaced its weights, "
            "or it has none: save the new weights as a Hugging Face directory, and open that with quantize="
        )
    if names := list(engine.client.adapters.infos):
        raise InvalidRequest(
            f"save_quantized() writes the model without adapters, and this session has {', '.join(names)}: remove them "
            "by remove_adapter(), or merge one into the model by PEFT's merge_and_unload() and open the result"
        )
