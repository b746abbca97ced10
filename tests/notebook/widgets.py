"""Read a kernel's widgets and outputs as a front end does, and send messages to them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.notebook.driver import SILENCE, Notebook

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass
class Widgets:
    """The new widgets of one kernel, since this object began to read.

    Attributes:
        states: the states of the open widgets, by id.
        changes: all changes since the widgets' creation: (date, id, new state).
        closed: the ids of the closed widgets.
        outputs: the current bundles, by display id.
        updates: all changes of outputs: (date, display id, new bundle).
    """

    notebook: Notebook
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def read_until(self, condition: Callable[[], bool]) -> None:
        """Read the kernel's messages until the condition holds."""
        ends = time.monotonic() + SILENCE
        while not condition():
            assert time.monotonic() < ends, f"it did not come to it: {self.states}"
            self._take(self.notebook.client.get_iopub_msg(timeout=SILENCE))

    def find(self, **state: object) -> str:
        """Return the id of the only open widget with this state; "" if there is none."""
        ids = [one for one, has in self.states.items() if state.items() <= has.items()]
        assert len(ids) < 2, f"{len(ids)} widgets have {state}"
        return ids[0] if ids else ""

    def send(self, widget: str, content: dict[str, Any]) -> None:
        """Send a message of a widget's page."""
        self._send(widget, {"method": "custom", "content": content})

    def change(self, widget: str, **state: object) -> None:
        """Tell the kernel that a front end has changed a widget."""
        self._send(widget, {"method": "update", "state": state, "buffer_paths": []})

    def _send(self, widget: str, data: dict[str, Any]) -> None:
        client = self.notebook.client
        client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": widget, "data": data}))

    def _take(self, message: dict[str, Any]) -> None:
        content, date = message["content"], message["header"]["date"].timestamp()
        match message["msg_type"]:
            case "comm_open":
                self.states[content["comm_id"]] = dict(content["data"]["state"])
            case "comm_msg" if content["data"]["method"] == "update":
                state = content["data"]["state"]
                self.changes.append((date, content["comm_id"], state))
                self.states[content["comm_id"]].update(state)
            case "comm_close":
                self.closed.append(content["comm_id"])
                del self.states[content["comm_id"]]
            case "display_data" | "update_display_data" as kind:
                display_id, bundle = content["transient"]["display_id"], content["data"]
                if kind == "update_display_data":
                    self.updates.append((date, display_id, bundle))
                self.outputs[display_id] = bundle
