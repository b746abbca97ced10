"""Speed of a session on its machine, measured by `session.bench`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle import markup
from rekindle.core.words import quantity, seconds, size_text
from rekindle.results.answers import import_pandas

BAR = f"rgb({markup.COOL})"


@dataclass(frozen=True, slots=True)
class Bench:
    """Speed of a session, from `session.bench`.

    A step of the model reads all weights once, for all requests in flight together. So the memory bandwidth divided by
    the size of the weights bounds the number of steps per second. A model with experts reads only a part of them.

    Attributes:
        name: the name of the model.
        device: the devices and the numbers of the computation.
        prompt_tokens: the length of the prompt for `first_token`.
        first_token: seconds from the submission of a new prompt to its first token, with an idle engine.
        speeds: tokens per second of all requests together, by the number of requests in flight.
        weight_bytes: the weights on each device.
        bandwidth: the memory bandwidth of one device in bytes per second, from an array read and written in place; None
            for a device without room for the array or in another process.
        compiled: the number of programs compiled for this measurement, before it began.
        waited: seconds for these programs and for those in the background.
        others: the number of other requests at the beginning; they slow the measurement.
    """

    name: str
    device: str
    prompt_tokens: int
    first_token: float
    speeds: Mapping[int, float]
    weight_bytes: int
    bandwidth: float | None
    compiled: int
    waited: float
    others: int

    @property
    def limit(self) -> float | None:
        """Largest number of steps per second that the memory bandwidth allows; None without a bandwidth or weights."""
        return self.bandwidth / self.weight_bytes if self.bandwidth and self.weight_bytes else None

    def share(self, in_flight: int) -> float | None:
        """Return the part of the memory bandwidth that reads the weights at a number of requests in flight."""
        return None if self.limit is None else self.speeds[in_flight] / in_flight / self.limit

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each number of requests in flight.

        The columns are in_flight (int), tokens_per_second (float), per_request (float, tokens per second of one
        request) and bandwidth_share (float).

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = import_pandas()
        rows = [(count, speed, speed / count, self.share(count)) for count, speed in self.speeds.items()]
        return pandas.DataFrame(rows, columns=["in_flight", "tokens_per_second", "per_request", "bandwidth_share"])

    def __repr__(self) -> str:
        speeds = ", ".join(f"{speed:,.0f} tokens/s at {count}" for count, speed in self.speeds.items())
        return f"<rekindle.Bench {self.name}: first token after {seconds(self.first_token)}, {speeds}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the table if this is the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else self._text())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        fastest = max(self.speeds.values(), default=1.0)
        rows = "".join(self._row(count, speed, fastest) for count, speed in self.speeds.items())
        parts = (self._first_token(), rows, markup.facts(self._machine()), markup.facts(self._preparation()))
        return markup.bundle(self._text(), markup.card("Bench", f"{self.name}{markup.BETWEEN}{self.device}", *parts))

    def _first_token(self) -> str:
        words = markup.visible(f"to the first token of a new prompt of {self.prompt_tokens:,} tokens")
        number = markup.visible(seconds(self.first_token))
        return f'<div><span style="{markup.BIG}">{number}</span> <span style="{markup.PALE}">{words}</span></div>'

    def _row(self, count: int, speed: float, fastest: float) -> str:
        """Return a bar with its numbers: tokens per second at a number of requests in flight."""
        number = f"{speed:,.0f} tokens/s"
        share = self.share(count)
        words = f"{speed / count:,.0f} each" + (f", {share:.0%} of the memory bandwidth" if share else "")
        bar = markup.bar({BAR: speed}, f"{number} at {count} in flight", whole=fastest)
        style = "display:flex;flex-wrap:wrap;align-items:center;gap:0 0.8em;margin:0.2em 0 0 0"
        return (
            f'<div style="{style}"><span style="flex:0 0 6em;{markup.PALE}">{count} in flight</span>{bar}'
            f'<span style="flex:1 1 18em">{number} <span style="{markup.PALE}">{words}</span></span></div>'
        )

    def _machine(self) -> dict[str, str | None]:
        """Return the facts that bound the speed."""
        return {
            "weights": size_text(self.weight_bytes),
            "memory bandwidth": None if self.bandwidth is None else f"{size_text(round(self.bandwidth))}/s",
            "at most": None if self.limit is None else f"{self.limit:,.0f} steps/s",
        }

    def _preparation(self) -> dict[str, str | None]:
        """Return the facts about the state of the engine before the measurement."""
        return {
            "compiled for it": quantity(self.compiled, "program"),
            "waited for programs": seconds(self.waited) if self.waited >= 1 else None,
            "beside it": f"{quantity(self.others, 'other request')}, so it is too slow" if self.others else None,
        }

    def _text(self) -> str:
        facts = {**self._machine(), **self._preparation()}
        lines = [f"Bench of {self.name} ({self.device})"]
        lines.append(f"first token  {seconds(self.first_token)} after {self.prompt_tokens:,} tokens")
        for count, speed in self.speeds.items():
            share = self.share(count)
            bound = f", {share:.0%} of the memory bandwidth" if share else ""
            lines.append(f"{count:2} in flight  {speed:,.0f} tokens/s, {speed / count:,.0f} each{bound}")
        lines.append(", ".join(f"{name} {value}" for name, value in facts.items() if value is not None))
        return "\n".join(lines)
