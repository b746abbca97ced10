"""The buttons of an explorer show the likely tokens of each place, and each choice grows a branch."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import rekindle
from rekindle.core.request.tokens import TokenLogprob
from rekindle.notebook.explorer import Explorer
from rekindle.session.session import Session
from rekindle.testing import fake_session
from tests.waiting import until_blocking

PROMPT = (3, 1, 4)


@pytest.fixture
def explorer(session: Session) -> Iterator[Explorer]:
    explorer = session.explore(session.generate_sync(token_ids=PROMPT, max_tokens=8, logprobs=3))
    yield explorer
    explorer.close()


def buttons(explorer: Explorer, kind: str) -> list[str]:
    """Return the names of the buttons of one kind, without those of branches."""
    return re.findall(rf'data-press="({kind}\.[^"]*)"', explorer.html())


def last_branch(explorer: Explorer, branches: int) -> Explorer:
    """Return the last branch once there are so many."""
    until_blocking(lambda: len(explorer.branches) >= branches, f"{branches} branches had grown")
    return explorer.branches[-1]


def test_each_token_shows_what_was_likely_and_a_choice_branches_there(explorer: Explorer) -> None:
    assert len(buttons(explorer, "token")) == 8
    assert buttons(explorer, "other") == []
    assert "choose a token" in explorer.html()
    logprobs = explorer.generation.logprobs
    assert logprobs is not None
    explorer.press("token.5")
    likely = buttons(explorer, "other")
    assert "place 5" in explorer.html()
    assert likely == [f"other.5.{token.token_id}" for token in logprobs[5].top[1:]], "the token itself is no other"
    explorer.press(likely[1])
    branch = last_branch(explorer, 1)
    assert branch.generation == explorer.generation.branch(5, logprobs[5].top[2].token_id).result()
    assert len(buttons(explorer, "below")) == 8
    explorer.press("below.0.token.7")
    explorer.press(f"below.0.{buttons(branch, 'other')[0]}")
    assert last_branch(branch, 1).generation.begun == 8
    assert explorer.face.widget.html == explorer.html()


def test_a_choice_after_the_session_was_closed_says_so(explorer: Explorer, session: Session) -> None:
    explorer.press("token.0")
    session.close_sync()
    explorer.press(buttons(explorer, "other")[0])
    assert "the session is closed" in explorer.html()


def test_a_branch_that_is_cancelled_stays_as_it_was(explorer: Explorer, session: Session) -> None:
    explorer.press("token.2")
    session.pause_sync()
    explorer.press(buttons(explorer, "other")[0])
    (handle,) = session.requests.values()
    handle.cancel()
    session.resume()
    until_blocking(lambda: "cancelled" in explorer.html(), "what is below said that it was cancelled")
    assert explorer.branches == []


def test_without_alternatives_there_is_nothing_to_choose_from() -> None:
    with fake_session() as session:
        for logprobs in (None, 0):
            generation = session.generate_sync(token_ids=PROMPT, max_tokens=3, logprobs=logprobs)
            with pytest.raises(rekindle.InvalidRequest, match="generate with logprobs=5"):
                session.explore(generation)


def test_where_there_is_no_notebook_it_is_shown_as_the_generation_is(explorer: Explorer) -> None:
    with pytest.raises(NotImplementedError):
        explorer._ipython_display_()
    assert explorer._repr_mimebundle_() == explorer.generation._repr_mimebundle_()
    assert repr(explorer) == f"<rekindle.Explorer of {explorer.generation!r}>"


def test_tokens_are_below_their_prompt_and_a_line_ends_where_its_token_does() -> None:
    piece = TokenLogprob(1, " a", -1.0, 1, (TokenLogprob(2, " b", -2.0, 2, (), b" b"),), b" a")
    end = replace(piece, text="\n", bytes=b"\n")
    with fake_session() as session:
        generation = session.generate_sync(token_ids=PROMPT, max_tokens=3, logprobs=1)
        explorer = session.explore(replace(generation, prompt="List <two>.", logprobs=(piece, end, piece)))
    html = explorer.html()
    assert [text.endswith("<br>") for text in re.findall(r"(?s)<button.*?</button>(?:<br>)?", html)] == [
        False,
        True,
        False,
    ]
    assert "List &lt;two&gt;." in html
