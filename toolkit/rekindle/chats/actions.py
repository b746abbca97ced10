"""Buttons on the messages of a chat in a notebook: continue, retry and edit, and arrows between versions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rekindle.chats.states import State, before_answer
from rekindle.chats.versions import Versions
from rekindle.core.errors import InvalidRequest

STEPS: Final = {"older": -1, "newer": 1}
"""The arrows, with their steps."""
SCRIPT: Final = """
const ACTS = {
  continue: ["Continue", "Go on with this answer where it was cut"],
  retry: ["Retry", "Answer anew; the arrows lead back"],
  edit: ["Edit", "Edit this message; the arrows lead back"],
  older: ["\\u25c0", "Former version"],
  newer: ["\\u25b6", "Next version"],
}

function act({ model, el }) {  // the live page alone has these buttons: a saved notebook has their places
  const zone = () => el.closest(".jp-OutputArea") ?? el  // in Jupyter, the conversation above too
  const part = word => {
    const node = document.createElement(word.startsWith("=") ? "span" : "button")
    const [text, hint] = ACTS[word.split(".")[0]] ?? [` ${word.slice(1)} `, ""]
    node.textContent = text
    if (!hint) return node
    Object.assign(node, { type: "button", className: "rekindle-press", title: hint })
    node.setAttribute("aria-label", text.length > 1 ? text : hint)
    node.dataset.press = word
    return node
  }
  const draw = () => {
    const places = [...zone().querySelectorAll("[data-acts]")]
    const isBusy = Boolean(el.querySelector("[data-press=send]:disabled"))
    for (const place of places) {
      const isSpare = "spare" in place.dataset && places.length > 1
      const acts = isSpare ? "" : place.dataset.acts
      if ((place.dataset.drawn ?? "") !== acts) {
        place.dataset.drawn = acts
        place.replaceChildren(...acts.split(" ").filter(Boolean).map(part))
      }
      for (const node of place.querySelectorAll("button")) if (node.disabled !== isBusy) node.disabled = isBusy
    }
  }
  const press = event => {  // inside the widget, its own listener hears it
    const button = event.target.closest?.("[data-acts] [data-press]")
    if (button && zone().contains(button) && !el.contains(button)) model.send({ press: button.dataset.press })
  }
  const observer = new MutationObserver(draw)
  let isOver = false
  const start = () => {
    if (isOver) return
    if (!el.isConnected) return requestAnimationFrame(start)
    const attributeFilter = ["disabled", "data-acts", "data-drawn"]
    observer.observe(zone(), { childList: true, subtree: true, attributes: true, attributeFilter })
    draw()
  }
  start()
  document.addEventListener("click", press, true)
  return () => {
    isOver = true
    observer.disconnect()
    document.removeEventListener("click", press, true)
  }
}
"""
"""The script of the buttons; the widget's `extend` calls `act`."""


class Press(NamedTuple):
    """A press of a button.

    Attributes:
        name: the name of the button.
        place: the index of its message.
    """

    name: str
    place: int

    @classmethod
    def of(cls, text: str) -> "Press":
        """Return the press of a button by its name in the page."""
        name, _, place = text.partition(".")
        return cls(name, int(place))


def places(states: Sequence[State]) -> dict[int, str]:
    """Return the place of the buttons of each message as HTML, by the index of the message.

    Args:
        states: the states of the conversation, the current one last.
    """
    versions, messages = Versions(states), states[-1].messages
    marks: dict[int, str] = {}
    for place, message in enumerate(messages):
        if message["role"] not in ("user", "assistant"):
            continue
        names = ["edit"] if message["role"] == "user" or message.get("content") else []
        if message["role"] == "assistant":
            goes_on = place == len(messages) - 1 and _is_open(states[-1])
            names = [*(["continue"] if goes_on else []), "retry", *names]
        words = [f"{name}.{place}" for name in names]
        number, count = versions.of(place)
        if count > 1:
            words += [*([f"older.{place}"] if number > 1 else []), f"={number}/{count}"]
            words += [f"newer.{place}"] if number < count else []
        marks[place] = f'<div style="font-size:0.85em" data-acts="{" ".join(words)}"></div>'
    return marks


def spare(marks: dict[int, str]) -> str:
    """Return the place of the last message for the input: pages that part outputs from widgets have it there."""
    return marks[max(marks)].replace("<div ", "<div data-spare ", 1) if marks else ""


def _is_open(state: State) -> bool:
    """Return True if the last answer can be continued."""
    try:
        before_answer(state.messages, state.answer)
    except InvalidRequest:
        return False
    return True
