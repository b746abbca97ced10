"""What a session found of earlier ones, as a card."""

from dataclasses import asdict, fields

from rekindle import markup
from rekindle.assembly.programs import restore_report
from rekindle.core.words import quantity, seconds


class RestoreReport(restore_report.RestoreReport):
    __doc__ = restore_report.RestoreReport.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the values, also with a report of the core, without a card."""
        return isinstance(other, restore_report.RestoreReport) and asdict(self) == asdict(other)

    __hash__ = restore_report.RestoreReport.__hash__

    @classmethod
    def of(cls, report: restore_report.RestoreReport) -> "RestoreReport":
        """Return a report with its card."""
        return cls(*(getattr(report, field.name) for field in fields(report)))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        reasons = markup.bullet_list(self.reasons()) if self.differences else ""
        html = markup.card("Restored", self._state(), self._picture(), markup.facts(self._facts()), reasons)
        return markup.bundle(repr(self), html)

    def _state(self) -> str:
        ratio = self.cold_seconds / self.seconds if self.cold_seconds and self.seconds else 0.0
        faster = f", {ratio:.{0 if ratio >= 9.95 else 1}f} times as fast as a cold start" if ratio >= 1.05 else ""
        return f"open after {seconds(self.seconds)}{faster}"

    def _picture(self) -> str:
        """Return a bar for the cold start and a bar for this start; empty without a measured cold start."""
        if not self.cold_seconds:
            return ""
        whole = max(self.cold_seconds, self.seconds)
        cold = _bar("cold start", self.cold_seconds, whole, f"rgb({markup.COOL})")
        return cold + _bar("this start", self.seconds, whole, f"rgb({markup.EMBER})")

    def _facts(self) -> dict[str, str | None]:
        """Return the numbers of the card, by name."""
        states = f" and {quantity(self.states, 'state')}" if self.states else ""
        missing = self.stored - self.programs
        return {
            "programs loaded": f"{self.programs:,}" + (f" of {self.stored:,}" if missing > 0 else ""),
            "compiled": f"{self.compiled:,}" + (f", {self.to_compile:,} still to compile" if self.to_compile else ""),
            "saved": f"{seconds(self.compile_seconds)} of compiling" if self.compile_seconds else None,
            "cached": f"{quantity(self.nodes, 'page')} ({quantity(self.tokens, 'token')}){states}"
            if self.nodes
            else None,
        }


def _bar(name: str, amount: float, whole: float, colour: str) -> str:
    """Return a bar for a duration, between its name and its seconds."""
    time = seconds(amount)
    bar = markup.bar({colour: amount}, f"{name}: {time}", whole=whole)
    style = "display:flex;align-items:center;gap:0 0.8em;max-width:44em;margin:0.1em 0 0 0"
    label = f'<span style="flex:0 0 5.5em;{markup.PALE}">{markup.visible(name)}</span>'
    return f'<div style="{style}">{label}{bar}<span style="flex:0 0 5em">{markup.visible(time)}</span></div>'
