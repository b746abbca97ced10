"""Widgets in Google Colab, where anywidget needs Colab's manager of custom widgets."""

import os
from functools import cache
from typing import Final

from rekindle.notebook import front_end

ENABLED: Final = (
    "Colab's manager of custom widgets is enabled now, and loads the code of widgets from a CDN "
    "(google.colab.output.enable_custom_widget_manager)"
)
"""The line in the cell of the first widget."""


def enable_widgets() -> None:
    """Enable Colab's manager of custom widgets, and say so, once; do nothing in other notebooks.

    Call this in the cell of the widget, before the display: Colab prepares displays of one thread only.
    """
    # Kaggle's images are made from Colab's, but have Jupyter's own page.
    if front_end.kernel() is not None and "KAGGLE_KERNEL_RUN_TYPE" not in os.environ:
        _enable()


@cache
def _enable() -> None:
    try:
        from google.colab import output
    except ImportError:
        return
    try:
        output.enable_custom_widget_manager()
    except Exception as error:  # the cell still has its text and HTML
        front_end.note(f"Colab's manager of custom widgets cannot be enabled, so widgets may be missing: {error}")
    else:
        front_end.note(ENABLED)
