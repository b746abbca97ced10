"""Metrics of several models in one text."""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class JoinedMetrics(Collector):
    """Collector of the metrics of several sessions, with the label `model`.

    Args:
        texts: the metrics of each session in Prometheus text format, by the model's name.
    """

    def __init__(self, texts: Mapping[str, str]):
        self._texts = texts

    def text(self) -> str:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self).decode()

    def collect(self) -> Iterable[Metric]:
        """Return each metric with the samples of all sessions."""
        metrics = dict[str, Metric]()
        for model, text in self._texts.items():
            for each in text_string_to_metric_families(text):
                metric = metrics.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                for sample in each.samples:
                    metric.add_sample(sample.name, {**sample.labels, "model": model}, sample.value)
        return metrics.values()
