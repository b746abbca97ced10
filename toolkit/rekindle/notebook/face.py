"""Live HTML in a page and the presses of its buttons, by anywidget: in Jupyter, in marimo, and wherever it works."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from rekindle import markup
from rekindle.notebook import colab

Take = Callable[[Mapping[str, Any], Sequence[Any]], None]
NOTHING_MORE: Final = "function extend() {}\n"
_ESM: Final = """
function sync(shown, next) {
  for (const { name, value } of next.attributes)
    if (shown.getAttribute(name) !== value) shown.setAttribute(name, value)
  for (const { name } of [...shown.attributes])
    if (name !== "open" && !next.hasAttribute(name)) shown.removeAttribute(name)  // what a person unfolds stays open
  patch(shown, next)
}

function patch(shown, next) {  // only what differs changes: focus, clicks and selected text outlive a redraw
  const nodes = [...next.childNodes]
  nodes.forEach((node, place) => {
    const old = shown.childNodes[place]
    if (!old) shown.append(node)
    else if (old.nodeName !== node.nodeName || old.dataset?.press !== node.dataset?.press) old.replaceWith(node)
    else if (node.nodeType === Node.ELEMENT_NODE) sync(old, node)
    else if (old.data !== node.data) old.data = node.data
  })
  while (shown.childNodes.length > nodes.length) shown.lastChild.remove()
}

function render({ model, el }) {
  const draw = () => {
    const next = document.createElement("template")
    next.innerHTML = model.get("html")
    patch(el, next.content)
  }
  const press = event => {
    const button = event.target.closest("[data-press]")
    if (button) model.send({ press: button.dataset.press })
  }
  draw()
  model.on("change:html", draw)
  el.addEventListener("click", press)
  const leave = extend({ model, el })
  return () => {
    leave?.()
    model.off("change:html", draw)
    el.removeEventListener("click", press)
  }
}

export default { render }
"""
_CSS: Final = f"""
.rekindle-press {{
  font: inherit; color: inherit; background: transparent; cursor: pointer;
  border: 1px solid {markup.LINE}; border-radius: 8px; padding: 0.2em 0.8em; margin: 0.4em 0.4em 0 0;
}}
.rekindle-press:hover {{ background: {markup.INSET} }}
.rekindle-press:disabled {{ opacity: 0.5; cursor: default }}
.rekindle-press:focus-within {{ outline: 2px solid currentColor }}
.rekindle-drops-over {{ outline: 2px dashed currentColor; outline-offset: 2px }}
"""


class Face:
    """HTML in a page; any thread may replace it.

    Args:
        press: the function to call with the name of a pressed button, on any thread.
        script: further script of the page, which defines `extend({ model, el })`.
        take: the function to call with the content and the buffers of a message of `script`.

    Attributes:
        widget: the widget in the page.

    Raises:
        ImportError: anywidget is not installed.
    """

    def __init__(self, press: Callable[[str], None], script: str = NOTHING_MORE, take: Take = lambda *_: None):
        self._press, self._take = press, take
        self.widget = _kind(script)()
        colab.enable_widgets()
        self.widget.on_msg(self._on_message)

    def draw(self, html: str) -> None:
        """Show HTML in place of the former; only a change is sent."""
        self.widget.html = html

    def _on_message(self, _: object, content: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        if "press" in content:
            self._press(content["press"])
        else:
            self._take(content, buffers)

    def close(self) -> None:
        """Close the widget permanently."""
        self.widget.layout.close()
        self.widget.close()


def button(name: str, words: str, *, style: str = "", hover: str = "", more: str = "") -> str:
    """Return a button as HTML.

    Args:
        name: the name for the function `press` of a `Face`.
        words: the text of the button.
        style: its style, if other than the usual.
        hover: its tooltip.
        more: further attributes, as HTML.
    """
    more += f' style="{style}"' if style else ""
    more += f' title="{markup.visible(hover)}"' if hover else ""
    press = markup.visible(name)
    return f'<button type="button" class="rekindle-press" data-press="{press}"{more}>{markup.visible(words)}</button>'


@cache
def _kind(script: str) -> Any:
    """Return the class of the widgets; anywidget is imported here, at its first use."""
    from anywidget import AnyWidget
    from traitlets import Unicode

    class FaceWidget(AnyWidget):
        """Shows HTML, and sends presses."""

        _esm = script + _ESM
        _css = _CSS
        html = Unicode("").tag(sync=True)

    return FaceWidget
