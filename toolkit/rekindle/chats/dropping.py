"""Files pasted or dropped into a widget of a notebook, by anywidget."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.sources import MOST_BYTES, check_length

ZONE: Final = "rekindle-drops"
"""The CSS class of the widget that takes files."""
_ESM: Final = """
const PART = 1 << 20  // servers close connections on messages of more than 10 MiB

async function deliver(model, file) {
  const { name, size } = file
  try {
    let start = 0
    do {
      const parts = size > model.get("most_bytes") ? [] : [await file.slice(start, start + PART).arrayBuffer()]
      model.send({ name, size, start }, undefined, parts)
      start += PART
    } while (start < Math.min(size, model.get("most_bytes")))
  } catch (error) {  // of a folder, or a file removed meanwhile
    model.send({ name, error: String(error?.message ?? error) })
  }
}

function render({ model, el }) {
  const zone = () => el.closest(".jp-OutputArea") ?? el.closest(".ZONE")  // the conversation above, too
  const mark = on => el.closest(".ZONE")?.classList.toggle("ZONE-over", on)
  const isHere = event => zone()?.contains(event.target)
  const hasFiles = data => data?.types.includes("Files")
  let queue = Promise.resolve()
  const take = (event, data) => {
    event.preventDefault()
    event.stopPropagation()
    for (const file of [...data.files]) queue = queue.then(() => deliver(model, file))
  }
  const listeners = {
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
  for (const [name, listener] of Object.entries(listeners)) document.addEventListener(name, listener, true)
  return () => {
    for (const [name, listener] of Object.entries(listeners)) document.removeEventListener(name, listener, true)
  }
}

export default { render }
""".replace("ZONE", ZONE)
_CSS: Final = f".{ZONE}-over {{ outline: 2px dashed currentColor; outline-offset: 2px }}"


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


def drop_zone(files: Files) -> Any:
    """Return an invisible widget that takes files for the widget of the class `ZONE` around it.

    None without anywidget: files are then chosen by a button.
    """
    try:
        from anywidget import AnyWidget
        from ipywidgets import Layout
        from traitlets import Int
    except ImportError:
        return None

    class DropZone(AnyWidget):
        """Listens to the page for files."""

        _esm = _ESM
        _css = _CSS
        most_bytes = Int(MOST_BYTES).tag(sync=True)

    zone = DropZone(layout=Layout(width="0", height="0", margin="0"))
    zone.on_msg(lambda _, content, buffers: files.take(content, buffers))
    return zone
