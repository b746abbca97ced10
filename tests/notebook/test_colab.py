"""A widget in a kernel with `google.colab` is displayed with Colab's manager of custom widgets."""

import pytest

from rekindle.notebook.colab import ENABLED
from tests.notebook.driver import Notebook
from tests.notebook.widgets import VIEW

pytestmark = [pytest.mark.notebook, pytest.mark.wide]

GOOGLE = """
import sys, types
google, package, output = map(types.ModuleType, ("google", "google.colab", "google.colab.output"))
package.output, google.colab = output, package

def mark(message):
    "Add the address of the manager to the display of a widget, as the hook of google.colab does."
    content = message["content"]
    if VIEW in content.get("data", {}):
        content.setdefault("metadata", {})[VIEW] = {"colab": {"custom_widget_manager": {"url": "https://cdn"}}}
    return message

output.enable_custom_widget_manager = lambda: get_ipython().display_pub.register_hook(mark)
sys.modules |= {module.__name__: module for module in (google, package)}
"""


def test_each_display_of_a_widget_names_the_manager(fresh: Notebook) -> None:
    fresh.run(f"VIEW = {VIEW!r}\n{GOOGLE}")
    fresh.run("from rekindle.testing import fake_session; fake = fake_session(); board = fake.dashboard(); board")
    fresh.run("other = fake.dashboard(); other")
    shown = [message["content"] for message in fresh.messages if message["msg_type"] == "display_data"]
    views = [content for content in shown if VIEW in content["data"]]
    assert len(views) == 2
    assert all(content["metadata"][VIEW]["colab"] for content in views)
    assert [content["data"]["text/plain"] for content in shown].count(ENABLED) == 1
    fresh.run("board.stop(); other.stop(); fake.close_sync()")
