"""A chat template with its token texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.formats.rendering.template import compile_template, template_variables


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja source.
        bos_token, eos_token: token texts, as template variables; None leaves one undefined.
    """

    source: str
    bos_token: str | None = None
    eos_token: str | None = None

    @property
    def variables(self) -> frozenset[str]:
        """Names of the template's undeclared variables.

        Raises:
            InvalidRequest: the source is not a valid template.
        """
        return template_variables(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render messages as they are.

        Raises:
            InvalidRequest: the template rejects the messages, or its code fails.
        """
        from jinja2 import TemplateError

        from rekindle.formats.rendering.sandbox import bounded  # beside jinja2, which it needs

        # Leave missing tokens undefined, because templates test for that.
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        defaults = {
            "add_generation_prompt": True,
            "documents": None,
            **{name: text for name, text in tokens.items() if text is not None},
        }
        values = {**defaults, **(variables or {}), "messages": messages, "tools": tools}
        try:
            with bounded():
                return compile_template(self.source).render(values)
        except InvalidRequest:
            raise
        except TemplateError as error:
            raise InvalidRequest.of("prompt", f"the model's chat template rejects the messages: {error}") from error
        except Exception as error:  # the template's code may divide by zero, overflow or call itself without an end
            raise InvalidRequest.of(
                "prompt",
                f"the model's chat template cannot render the messages ({type(error).__name__}: {error}): "
                "check that it supports their roles and keys, the tools and the variables",
            ) from error
