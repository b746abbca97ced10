"""Read a kernel as a front end does: outputs by cell, widgets, and clicks on them."""

from typing import Any

from tests.notebook.driver import SILENCE, Notebook

VIEW = "application/vnd.jupyter.widget-view+json"
Bundle = dict[str, Any]


class Page:
    """The outputs of all cells from now on.

    Attributes:
        outputs: the current content of each output, by display id, in the order of display.
        versions: all contents of each output so far.
        cells: the id of each output's cell.
        widgets: the state of each open widget, by the id of its comm.
    """

    def __init__(self, notebook: Notebook):
        self._notebook = notebook
        self._position = len(notebook.messages)
        self.outputs: dict[str, Bundle] = {}
        self.versions: dict[str, list[Bundle]] = {}
        self.cells: dict[str, list[str]] = {}
        self.widgets: dict[str, Bundle] = {}

    def catch_up(self) -> None:
        """Read the notebook's new messages."""
        for message in self._notebook.messages[self._position :]:
            self._take(message)
        self._position = len(self._notebook.messages)

    def listen(self) -> None:
        """Wait for one more message, and read it."""
        self._notebook.stray.append(self._notebook.hear(SILENCE))
        self.catch_up()

    def _take(self, message: dict[str, Any]) -> None:
        content, kind = message["content"], message["msg_type"]
        if kind in ("display_data", "update_display_data"):
            output = content["transient"].get("display_id")
            if kind == "display_data":
                assert output not in self.outputs, "displayed twice"
            elif output not in self.outputs:
                return  # it belongs to an earlier page
            self.outputs[output] = content["data"]
            self.versions.setdefault(output, []).append(content["data"])
            self.cells.setdefault(output, []).append(message["parent_header"]["msg_id"])
        elif kind == "comm_open":
            self.widgets[content["comm_id"]] = content["data"]["state"]
        elif kind == "comm_close":
            self.widgets.pop(content["comm_id"], None)

    @property
    def cards(self) -> list[str]:
        """The ids of the outputs with a generation, complete or growing."""
        return [output for output, bundle in self.outputs.items() if "<b>Generation</b>" in bundle.get("text/html", "")]

    @property
    def buttons(self) -> list[str]:
        """The comm ids of the visible buttons with open widgets."""
        models = [bundle[VIEW]["model_id"] for bundle in self.outputs.values() if VIEW in bundle]
        return [comm for comm in models if comm in self.widgets]


def click(notebook: Notebook, button: str, subshell: str | None = None) -> None:
    """Press a button as a front end does.

    Args:
        button: the id of the button's comm.
        subshell: where to send it; None for the shell that runs cells.
    """
    content = {"comm_id": button, "data": {"method": "custom", "content": {"event": "click"}}}
    message = notebook.client.session.msg("comm_msg", content)
    if subshell is not None:
        message["header"]["subshell_id"] = subshell
    notebook.client.shell_channel.send(message)


def subshell(notebook: Notebook) -> str:
    """Make a subshell, in a kernel with subshells, and return its id."""
    client = notebook.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    while True:
        reply = client.get_control_msg(timeout=SILENCE)
        if reply["msg_type"] == "create_subshell_reply":
            return str(reply["content"]["subshell_id"])
