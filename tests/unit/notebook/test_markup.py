"""The HTML of cells' results keeps hostile text as text, runs and loads nothing, and stays small."""

import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle import markup
from rekindle.client.calls.prompts import as_text
from rekindle.client.handle import Handle
from rekindle.client.submission import Submission
from rekindle.core.messages import Continued, Conversation, Started, Text
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import quantity
from rekindle.results.facts.figures import Timings, Usage
from rekindle.results.facts.restored import RestoreReport
from rekindle.results.facts.stats import SchedulerStats
from rekindle.results.generation import Generation, text_html
from rekindle.results.heat_map import LONGEST_TOKEN, MOST_TOKENS, heat_map
from tests.unit.cards import HOSTILE, SPELLED, Page, page_of, read


def token_of(text: str, logprob: float = -0.5, rank: int = 2, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(7, text, logprob, rank, top)


def generation(text: str, logprobs: tuple[TokenLogprob, ...] | None = None) -> Generation:
    usage, timings = Usage(24, 3), Timings(0.012, 0.1, 1.1)
    return Generation(
        text, (5, 6, 7), "stop", HOSTILE, logprobs, None, (), None, usage, timings, CachedTokens(device=16)
    )


@given(st.text(st.characters()))
def test_text_stays_text_and_is_well_formed_xml_too(text: str) -> None:
    escaped = markup.visible(text)
    escaped.encode()
    root = ElementTree.fromstring(f'<a b="{escaped}">{escaped}</a>')
    assert root.text == Page(f"<b>{escaped}</b>").text or not text
    assert "<" not in escaped
    assert '"' not in escaped


def test_hostile_text_is_shown_as_it_is_and_what_is_unseen_is_spelled_out() -> None:
    tokens = (token_of(HOSTILE, top=(token_of(HOSTILE, rank=1),)),)
    page = page_of(replace(generation(HOSTILE, tokens), prompt_logprobs=(None, *tokens)))
    assert page.text.count(SPELLED[:40]) >= 3
    assert SPELLED in page.text
    assert any(SPELLED[:40] in title for title in page.titles)
    page_of(RestoreReport(1, 1, 1, 1, 1, 1.0, 1.0, {HOSTILE: (HOSTILE, HOSTILE)}))
    read(markup.card(HOSTILE, HOSTILE, markup.facts({HOSTILE: HOSTILE}), markup.folded(HOSTILE, "")))
    read(markup.table([(HOSTILE, HOSTILE)], (HOSTILE, HOSTILE)) + markup.shares({HOSTILE: 1}, HOSTILE))


def test_numbers_are_right_aligned_and_so_is_what_stands_above_them() -> None:
    table = markup.table(
        [("3", "-0.258", "1.2e-24%", "1.23 MB", "1969 was long ago"), ("4", "12", "98.4%", "512 B", "rain")],
        ("name", "logprob", "share", "size", "text"),
    )
    aligned = re.findall(r"text-align:(left|right)", table)
    assert aligned == ["left", "right", "right", "right", "left"] * 3
    assert re.findall(r"text-align:(left|right)", markup.table([], ("name", "size"))) == ["left", "left"]
    mixed = markup.table([("policy", "fcfs"), ("max_running", "32")])
    assert re.findall(r"text-align:(left|right)", mixed) == ["left"] * 4, "a column is aligned as one"


def test_facts_are_apart_in_copied_text_and_bars_have_values() -> None:
    facts = read(markup.facts({"prompt": "1 token", "cached": None, "total": "2 s"}))
    assert facts.text == "prompt 1 token · total 2 s"
    bar = read(markup.bar({"red": 1.0}, "1 of 4", whole=4, role="progressbar"))
    assert {("role", "progressbar"), ("aria-label", "1 of 4"), ("aria-valuenow", "25")} <= {*bar.attributes}


def test_the_numbers_of_a_heat_map_are_text_too() -> None:
    tokens = (token_of(" odd", -0.5, 3, (token_of(" sure", -0.1, 1),)),)
    page = page_of(generation(" odd", tokens))
    assert "0. “ odd” 60.7%, rank 3; likeliest: “ sure” 90.5%" in page.text


def test_one_of_a_thing_is_not_several() -> None:
    counts = [quantity(count, "page") for count in (0, 1, 2, 1000)]
    assert counts == ["0 pages", "1 page", "2 pages", "1,000 pages"]
    assert [quantity(count, "branch", "branches") for count in (1, 2)] == ["1 branch", "2 branches"]


@pytest.mark.parametrize("length", [6001, markup.LONGEST_PASSAGE, markup.LONGEST_PASSAGE + 1, 10**7])
def test_a_long_text_is_folded_and_one_that_is_too_long_is_cut(length: int) -> None:
    html = markup.passage("x" * length)
    page = read(html)
    assert f"{length - markup.HEAD:,} more character{'s' * (length > markup.HEAD + 1)}" in page.text
    assert page.text.count("x") == min(length, markup.LONGEST_PASSAGE)
    assert len(html) < markup.LONGEST_PASSAGE + 1500
    assert "details" not in read(markup.passage("x" * 6000)).tags, "a short rest is not folded"
    whole = read(markup.passage("x" * length, folds=False))
    assert ("details" in whole.tags) == (length > markup.LONGEST_PASSAGE)


def test_a_long_text_is_folded_between_words() -> None:
    text = "lighthouse " * 1000
    head, folded = re.findall(r"<pre .*?>(.*?)</pre>", markup.passage(text), re.DOTALL)
    assert head + folded == text
    assert head.endswith("lighthouse ")
    assert folded.startswith("lighthouse ")
    assert f"{len(folded):,} more characters" in read(markup.passage(text)).text
    assert len(head) <= markup.HEAD


def test_a_text_whose_tokens_are_drawn_is_shown_once() -> None:
    tokens = tuple(TokenLogprob(7, text, -0.5, 1, (), text.encode()) for text in ("One", " two", "</s>"))
    assert page_of(generation("One two", tokens)).text.count("One two") == 1
    assert page_of(generation("One", tokens)).text.count("One two") == 1
    spaced = (replace(tokens[0], text=" One", bytes=b" One"), *tokens[1:])
    assert page_of(generation("One two", spaced)).text.count("One two") == 1, "many tokenizers drop the first space"
    assert page_of(generation("One two three", tokens)).text.count("One two") == 2, "the tokens are not all of it"


def test_a_text_whose_tokens_are_not_all_drawn_is_shown_besides() -> None:
    many = (TokenLogprob(7, "a ", -0.5, 1, (), b"a "),) * (MOST_TOKENS + 1)
    long = (TokenLogprob(7, "x" * (LONGEST_TOKEN + 1), -0.5, 1, (), b"x" * (LONGEST_TOKEN + 1)),)
    for tokens in (many, long):
        text = b"".join(token.bytes for token in tokens).decode()
        assert text in page_of(generation(text, tokens)).text


def test_a_heat_map_marks_what_was_not_the_likeliest() -> None:
    html = heat_map([None, token_of(" sure", 0.0, 1), token_of(" odd", -8.0, 300, (token_of(" sure", -0.1, 1),))])
    assert html.count("border-bottom") == html.count("background") == 1


def test_a_formatted_answer_is_rendered_above_its_folded_heat_map() -> None:
    def html_of(*words: str) -> str:
        return text_html("".join(words), "", [TokenLogprob(7, word, -0.5, 2, (), word.encode()) for word in words])

    html = html_of("**", "Two", "**", " ways")
    assert html.index("<strong") < html.rindex("<details") < html.index("rank 2")
    plain = html_of("Two", " ways")
    assert plain.count("Two") == 2, "in the tooltip, and in the heat map alone"
    assert "<details" not in plain


@pytest.mark.parametrize("logprob", [float("-inf"), -1e30, 1e-7])
def test_a_heat_map_takes_any_logprob(logprob: float) -> None:
    assert re.search(r"(100\.0|0\.0)%", read(heat_map([token_of("a", logprob)])).titles[0])


def test_a_heat_map_of_many_long_tokens_is_cut() -> None:
    token = token_of("<" * 1000, top=(token_of("<" * 1000),) * 20)
    html = heat_map([token] * 10_000)
    assert "9,600 more tokens" in read(html).text
    assert len(html) < 1_000_000
    assert len(heat_map([token_of(" word", top=(token_of(" other"),) * 3)] * 10_000)) < 150_000


def test_the_parts_of_a_bar_fill_it() -> None:
    stats = SchedulerStats(prompt_tokens=200, device_hit_tokens=100, host_hit_tokens=50, computed_tokens=50)
    html = stats._repr_mimebundle_()["text/html"]
    assert sum(float(width) for width in re.findall(r"[;\"]width:([\d.]+)%", html)) == 100


def test_a_handle_shows_hostile_text_and_a_long_reason_of_its_failure_as_text() -> None:
    handle = Handle(1, Submission((1,), SamplingParams(logprobs=0)), lambda _: None)
    handle.send()
    handle.record.deliver(Started(1, (5,) * 24, None, cached=CachedTokens(device=16)))
    handle.record.deliver(Text(1, HOSTILE, (7,), None, logprobs=(token_of(HOSTILE),)))
    assert SPELLED in page_of(handle).text
    handle.record.fail(RuntimeError(f"{HOSTILE}\n{'x' * 2 * markup.HEAD}"))
    page = page_of(handle)
    assert page.text.count(SPELLED[:40]) == 3, "what came, its token, and why it failed"
    assert "more characters" in page.text, "a long reason is folded"
    assert repr(handle).startswith("<rekindle.Handle failed after 1 token: </pre>")


def test_a_prompt_is_shown_as_it_was_given() -> None:
    chat = Conversation([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}], None, {})
    assert as_text(chat) == "user: Hi\nassistant: None"
    assert as_text(Continued("One", "Two")) == "OneTwo"
    assert as_text((1, 2)) == "1 2"


def test_the_tokens_of_one_character_are_one_span_and_a_lone_piece_is_its_bytes() -> None:
    parts = [b"a ", "é".encode()[:1], "é".encode()[1:] + "🚀".encode()[:1], "🚀".encode()[1:], b"b", "é".encode()[:1]]
    tokens = [TokenLogprob(7, part.decode(errors="backslashreplace"), -0.5, 1, (), part) for part in parts]
    spans = re.findall(r"<span title=\"(.*?)\".*?>(.*?)</span>", heat_map(tokens), re.DOTALL)
    assert [text for _, text in spans] == ["a ", "é🚀", "b", "\\xc3"]
    assert [len(title.splitlines()) for title, _ in spans] == [1, 3, 1, 1]
    deeper = [float(depth) for depth in re.findall(r"rgba\(240,90,30,(.*?)\)", heat_map(tokens))]
    assert deeper[1] > deeper[0] == deeper[2] == deeper[3], "it is as likely as all of its tokens together"


def test_a_result_is_not_shown_again_in_its_cell_and_a_terminal_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(execution_count=3, kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for drawn_in in (None, 2):
        with pytest.raises(NotImplementedError):
            markup.display_again(drawn_in)
    markup.display_again(3)
    assert capsys.readouterr().out == "", "a notebook has its output"
    shell.kernel = None
    markup.display_again(3)
    assert capsys.readouterr().out == "(shown above)\n"
