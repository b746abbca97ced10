"""Metrics of several models in one text."""

from collections.abc import Iterator, Mapping

HEAD = "# HELP "


def joined(texts: Mapping[str, str]) -> str:
    """Return the metrics of several sessions in Prometheus text format, with the label `model`.

    Args:
        texts: the metrics of each session in this format, by the model's name.
    """
    families: dict[str, list[str]] = {}
    for model, text in texts.items():
        for head, samples in _families(text):
            families.setdefault(head, []).extend(_labelled(sample, model) for sample in samples)
    return "".join(head + "".join(samples) for head, samples in families.items())


def _families(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the two lines of help and type of each metric, and its samples."""
    for part in text.split(HEAD)[1:]:
        help_line, type_line, *samples = part.splitlines(keepends=True)
        yield HEAD + help_line + type_line, samples


def _labelled(sample: str, model: str) -> str:
    """Return a sample with one more label."""
    name, _, value = sample.rpartition(" ")
    value_of = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    label = 'model="{}"'.format("".join(value_of.get(letter, letter) for letter in model))
    labels = f"{name[:-1]},{label}}}" if name.endswith("}") else f"{name}{{{label}}}"
    return f"{labels} {value}"
