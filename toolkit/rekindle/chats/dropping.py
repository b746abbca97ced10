"""Texts typed, and files chosen, pasted or dropped in a chat's widget: the script of its page, and parts of files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.sources import MOST_BYTES, check_length

ZONE: Final = "rekindle-drops"
"""The CSS class of the input."""
SCRIPT: Final = """
const PART = 1 << 20  // servers close connections on messages of more than 10 MiB

async function deliver(model, file) {
  const { name, size } = file
  try {
    let start = 0
    do {
      const parts = size > MOST_BYTES ? [] : [await file.slice(start, start + PART).arrayBuffer()]
      model.send({ name, size, start }, undefined, parts)
      start += PART
    } while (start < Math.min(size, MOST_BYTES))
  } catch (error) {  // of a folder, or a file removed meanwhile
    model.send({ name, error: String(error?.message ?? error) })
  }
}

function drop({ model, el }) {
  const zone = () => el.closest(".jp-OutputArea") ?? el  // in Jupyter, the conversation above too
  const field = () => el.querySelector("textarea")
  const mark = on => el.classList.toggle("ZONE-over", on)
  const isHere = event => event.composedPath().includes(zone())
  const hasFiles = data => data?.types.includes("Files")
  let queue = Promise.resolve()
  const deliverAll = files => {
    for (const file of [...files]) queue = queue.then(() => deliver(model, file))
  }
  const take = (event, data) => {
    event.preventDefault()
    event.stopPropagation()
    deliverAll(data.files)
  }
  const say = () => {
    model.send({ text: field().value })
    if (field().value.trim()) field().value = ""
  }
  const local = {
    click: event => { if (event.target.closest("[data-press=send]")) say() },
    change: event => {
      if (event.target.type !== "file") return
      deliverAll(event.target.files)
      event.target.value = ""
    },
    keydown: event => {
      if (event.target !== field()) return
      event.stopPropagation()  // letters are commands of notebooks
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
      event.preventDefault()
      say()
    },
  }
  const global = {
    paste: event => {  // a table copied from a sheet is a text and a picture of it: the text is meant
      const data = event.clipboardData
      if (isHere(event) && data?.files.length && !data.types.includes("text/plain")) take(event, data)
    },
    dragover: event => {
      const isOver = isHere(event) && hasFiles(event.dataTransfer)
      if (isOver) event.preventDefault()
      mark(isOver)
    },
    dragleave: event => { if (event.relatedTarget === null) mark(false) },
    drop: event => {
      mark(false)
      if (isHere(event) && hasFiles(event.dataTransfer)) take(event, event.dataTransfer)
    },
  }
  const giveBack = content => {
    if (!field().value || content.edit) field().value = content.text
    if (content.edit) field().focus()
  }
  model.on("msg:custom", giveBack)
  for (const [name, listener] of Object.entries(local)) el.addEventListener(name, listener)
  for (const [name, listener] of Object.entries(global)) document.addEventListener(name, listener, true)
  return () => {
    model.off("msg:custom", giveBack)
    for (const [name, listener] of Object.entries(local)) el.removeEventListener(name, listener)
    for (const [name, listener] of Object.entries(global)) document.removeEventListener(name, listener, true)
  }
}
""".replace("ZONE", ZONE).replace("MOST_BYTES", str(MOST_BYTES))
"""The script of the input of a chat; the widget's `extend` calls `drop`."""


class Files:
    """Collects the parts of pasted or dropped files.

    Args:
        add: takes the name and the bytes of a file.
        refuse: takes the name of a file and the reason why it is not taken.
    """

    def __init__(self, add: Callable[[str, bytes], None], refuse: Callable[[str, str], None]):
        self._add, self._refuse = add, refuse
        self._data = bytearray()

    def take(self, content: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Take a part of a file, in order of the parts; a file out of bounds has no parts.

        Args:
            content: the `name` and the `size` of the file and the `start` of the part in bytes; or an `error`.
            buffers: the part.
        """
        name, size = content["name"], content.get("size", 0)
        if "error" in content:
            self._refuse(name, f"it cannot be read ({content['error']})")
            return
        try:
            check_length(size)
        except InvalidRequest as error:
            self._refuse(name, str(error))
            return
        if not content["start"]:
            self._data.clear()
        self._data += b"".join(buffers)
        if len(self._data) == size:
            data = bytes(self._data)
            self._data.clear()
            self._add(name, data)
