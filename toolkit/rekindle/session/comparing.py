"""Session method to compare settings: one prompt with all settings at the same time."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from rekindle.client.calls.options import GENERATE_DEFAULTS, GenerateOptions, OnePrompt, OnePromptOptions
from rekindle.client.handle import Handle
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.request import checks
from rekindle.results.comparison import Comparison, column_name

MOST_SETTINGS = 100
SettingsOf = Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]
"""Settings of each answer: a list, or a mapping from the names of the columns."""


@spelled_out(GenerateOptions, GENERATE_DEFAULTS)
def compare(
    session: HasRequests, prompt: OnePrompt, settings: SettingsOf, **options: Unpack[OnePromptOptions]
) -> Waits[Comparison]:
    """Generate an answer to one prompt with each of several settings at the same time, displayed side by side.

    Leaving the wait early cancels all requests.

    Args:
        prompt: text or messages, as in `generate`.
        settings: keywords of `generate` for each answer, such as `[{}, {"temperature": 0.8}]`; or a mapping from names
            to such keywords. The keyword "session" selects another open session, to compare models.
        Others: options of all answers, as in `generate`.

    Returns:
        A `rekindle.Comparison`: the list of answers, displayed in columns; `to_frame()` is a data frame.

    Raises:
        InvalidRequest: `settings` or an option is invalid; nothing was computed.
        Others: as in `generate`; the first error cancels the other requests.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    columns = _by_name(settings)
    calls = [_call(session, prompt, {**options, **setting}, name) for name, setting in columns]
    handles: list[Handle] = []
    try:
        for requests, call_options in calls:
            handles.append(requests.submit_one(prompt, call_options, wait=True))
        answers = []
        for handle in handles:
            answers.append((yield from handle.wait_ended()))
    finally:
        for handle in handles:
            handle.cancel()
    return Comparison(answers, [_described(setting) for _, setting in columns], [name for name, _ in columns])


def _by_name(settings: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the settings with the names of their columns.

    Raises:
        InvalidRequest: the settings are neither a list of mappings nor a mapping of mappings, or too many.
    """
    is_mapping = isinstance(settings, Mapping)
    each = list(settings.values() if is_mapping else settings) if is_mapping or checks.is_sequence(settings) else []
    if not each or not all(isinstance(setting, Mapping) for setting in each) or len(each) > MOST_SETTINGS:
        raise InvalidRequest(
            'settings must be a list of mappings with keywords of generate, such as [{}, {"temperature": 0.8}], or a '
            f"mapping from names to such mappings, at most {MOST_SETTINGS}; got {checks.preview(settings)}"
        )
    names = map(str, settings) if is_mapping else (column_name(_described(setting)) for setting in each)
    return list(zip(names, each, strict=True))


def _described(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a column with the name of its session in place of the session."""
    return {key: getattr(value, "name", value) if key == "session" else value for key, value in setting.items()}


def _call(
    session: HasRequests, prompt: Any, options: Mapping[str, Any], name: str
) -> tuple[Requests, GenerateOptions[Any]]:
    """Return the checked call of a column.

    Raises:
        InvalidRequest: an option, the session or the prompt is invalid.
    """
    selected: Any = options.get("session", session)
    if not isinstance(getattr(selected, "_requests", None), Requests):
        raise InvalidRequest(f"session must be an open rekindle.Session, got {checks.preview(selected)}")
    call_options: Any = {key: value for key, value in options.items() if key != "session"}
    requests: Requests = selected._requests
    try:
        requests.params(call_options)
        requests.prompt(prompt, call_options)
    except InvalidRequest as error:
        raise InvalidRequest(f"settings {name!r}: {error}") from error
    return requests, call_options
