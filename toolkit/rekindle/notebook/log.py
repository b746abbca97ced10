"""Lines for logs, where neither a terminal nor a notebook shows progress: the logger `rekindle`."""

import logging
import sys
from typing import Final

from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.notebook import front_end

LOG: Final = logging.getLogger("rekindle")


def log(line: str, level: int = logging.INFO) -> None:
    """Log a line. Without a handler for the logger, lines from INFO on are written to stderr.

    Args:
        line: the line.
        level: its level: DEBUG for the stages of a start, INFO for all others.
    """
    is_bare = not LOG.handlers and logging.root.handlers == [logging.lastResort]  # during a save
    if LOG.hasHandlers() and not is_bare:
        LOG.log(level, "%s", line)
    elif level >= (LOG.level or logging.INFO) and sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def tell_line(line: str) -> None:
    """Display a line: dim in a notebook, on stderr in a terminal, logged where nobody looks."""
    if front_end.has_reader():
        front_end.note(line)
    else:
        log(line)


def tell_restored(model: str, report: RestoreReport) -> None:
    """Display the report of a start: as a card in a notebook, as text in a terminal, as one line in a log.

    A log has a line for a cold start too.

    Args:
        model: the name of the model.
        report: the report of the session.
    """
    if not front_end.has_reader():
        log(f"{model}: {report.line}")
        for reason in report.reasons():
            log(f"{model}: {reason}", logging.DEBUG)
    elif report.stored or report.nodes:
        front_end.tell(report)
