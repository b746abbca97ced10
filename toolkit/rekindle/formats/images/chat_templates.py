"""Chat templates for texts alone, with a place for images."""

from typing import Final

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.images.processors.processor import ImageProcessor

_PARTS_AS_TEXT: Final = """
{%- set space = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message.content is iterable and message.content is not string -%}
{%- set text -%}
{%- for part in message.content -%}{{ OPENING if part.type == 'image' else part.text }}{%- endfor -%}
{%- endset -%}
{%- set space.messages = space.messages + [dict(message, content=text)] -%}
{%- else -%}
{%- set space.messages = space.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = space.messages -%}
"""


def with_places(tokenizer: Tokenizer | None, images: ImageProcessor | None) -> Tokenizer | None:
    """Return a tokenizer with places for images in its chat template: a template for texts alone gets openings."""
    template = None if tokenizer is None else tokenizer.chat_template
    if tokenizer is None or images is None or template is None or "image" in template:
        return tokenizer
    opening = images.words.opening.replace("\n", "\\n")
    return tokenizer.with_chat_template(_PARTS_AS_TEXT.strip().replace("OPENING", f"'{opening}'") + template)
