"""An explanation in an exported page shows the chosen token, by clicks and by keys, without a kernel or a script."""

import json
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.test_exported import exported, opened
from tests.unit.notebook.test_explanation import TEXTS, explanation


def test_a_token_of_an_exported_page_is_chosen_by_a_click_and_by_a_key(context: BrowserContext, tmp_path: Path) -> None:
    output = {"output_type": "display_data", "metadata": {}, "data": explanation(*TEXTS)._repr_mimebundle_()}
    cell = {"cell_type": "code", "id": "0", "metadata": {}, "source": "", "outputs": [output], "execution_count": 1}
    notebook = tmp_path / "explained.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]}))
    with opened(context, exported("light", tmp_path, notebook)) as page:
        card = page.get_by_role("radiogroup", name="Tokens")
        expect(card.locator("label")).to_have_count(len(TEXTS))
        expect(page.locator(".rekindle-explanation-text")).to_be_hidden()
        assert "tick 6 drew it" in card.inner_text()
        card.locator("label").nth(1).click()
        text = card.inner_text()
        assert "tick 6 drew it" not in text
        assert "page 1 of 2, place 2 of 4" in text
        page.keyboard.press("ArrowLeft")
        assert "the first token of a prompt is not predicted" in card.inner_text()
        page.screenshot(path=SCREENSHOTS / "explained.png", full_page=True)
