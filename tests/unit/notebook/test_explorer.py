"""The buttons of an explorer show the likely tokens of each place, and each choice grows a branch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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


def parts(explorer: Explorer) -> tuple[Any, Any, Any]:
    """Return the buttons of the tokens, the choices, and the parts below."""
    _, tokens, choices, below = explorer.root.children
    return tokens.children, choices.children, below.children


def last_branch(explorer: Explorer, branches: int) -> Explorer:
    """Return the last branch once there are so many."""
    until_blocking(lambda: len(explorer.branches) >= branches, f"{branches} branches had grown")
    return explorer.branches[-1]


def test_each_token_shows_what_was_likely_and_a_choice_branches_there(explorer: Explorer) -> None:
    tokens, choices, below = parts(explorer)
    assert (len(tokens), len(choices), len(below)) == (8, 1, 0)
    assert "choose a token" in choices[0].value
    logprobs = explorer.generation.logprobs
    assert logprobs is not None
    tokens[5].click()
    words, *likely = parts(explorer)[1]
    assert "place 5" in words.value
    assert len(likely) == 2, "the token itself is no other choice"
    likely[1].click()
    branch = last_branch(explorer, 1)
    assert branch.generation == explorer.generation.branch(5, logprobs[5].top[2].token_id).result()
    assert parts(explorer)[2] == (branch.root,)
    parts(branch)[0][7].click()
    parts(branch)[1][1].click()
    assert last_branch(branch, 1).generation.begun == 8


def test_a_choice_after_the_session_was_closed_says_so(explorer: Explorer, session: Session) -> None:
    parts(explorer)[0][0].click()
    session.close_sync()
    parts(explorer)[1][1].click()
    assert "the session is closed" in parts(explorer)[2][0].value


def test_a_branch_that_is_cancelled_stays_as_it_was(explorer: Explorer, session: Session) -> None:
    parts(explorer)[0][2].click()
    session.pause_sync()
    parts(explorer)[1][1].click()
    (handle,) = session.requests.values()
    handle.cancel()
    session.resume()
    (below,) = parts(explorer)[2]
    until_blocking(lambda: "cancelled" in below.value, "what is below said that it was cancelled")
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
    tokens = parts(explorer)[0]
    assert [hasattr(token, "description") for token in tokens] == [True, True, False, True]
    assert tokens[2].layout.flex == "0 0 100%"
    assert "List &lt;two&gt;." in explorer.root.children[0].value
    explorer.close()
