"""The HTML of cells' results keeps hostile text as text, runs and loads nothing, and stays small."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import takewhile
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle import markup
from rekindle.messages import Chat, Continued, Started, Submit, Text
from rekindle.request.params import SamplingParams
from rekindle.results.figures import CachedTokens, Timings, Usage
from rekindle.results.generation import Generation
from rekindle.results.heat_map import LONGEST_TOKEN, MOST_TOKENS, heat_map
from rekindle.results.tokens import TokenLogprob
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.scheduler.stats import SchedulerStats
from rekindle.session.calls.handle import Handle
from rekindle.session.calls.prompts import as_text
from rekindle.store.restored import Restored
from rekindle.testing import fake_session
from rekindle.views.cache.drawing import BAR_WIDTH, Run, draw
from rekindle.views.cache.hottest import MAX_RUNS
from rekindle.views.cache.labels import LEAST_GAP, alike, label_start
from rekindle.views.cache.view import CacheView, view
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing

HOSTILE = (
    "</pre></span></svg><script>alert('x')</script><img src=x onerror=\"go()\">&amp;\x00\x1b[31m\ud800\u202e\uffff"
)
SPELLED = HOSTILE.replace("\x00", r"\x00").replace("\x1b", r"\x1b")
SPELLED = SPELLED.replace("\ud800", r"\ud800").replace("\u202e", r"\u202e").replace("\uffff", r"\uffff")
ALLOWED = {"div", "span", "b", "pre", "table", "tr", "td", "th", "ul", "li", "details", "summary"}
DRAWN = {"svg", "g", "title", "rect", "text", "path"}
PAGE = 4


class Page(HTMLParser):
    """The tags, attributes and text of a piece of HTML whose tags are all closed in order."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, f"{self.open} are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def titles(self) -> list[str]:
        return [value for name, value in self.attributes if name == "title"]


def read(html: str, tags: set[str] = ALLOWED) -> Page:
    """Parse what a cell would show, and check the rules for all HTML."""
    html.encode()  # a lone surrogate would fail here, and in the file of a notebook
    page = Page(html)
    assert page.tags <= tags
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") or name in {"id", "class", "href", "src"} for name in names)
    assert not any("url(" in value for name, value in page.attributes if name == "style")
    assert not re.search(r"(?<!-)color:(?!inherit)", html), "text keeps the page's colour"
    return page


def shown(thing: object) -> Page:
    bundle = thing._repr_mimebundle_()  # type: ignore[attr-defined]
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"]
    return read(bundle["text/html"])


def scored(text: str, logprob: float = -0.5, rank: int = 2, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(7, text, logprob, rank, top)


def generation(text: str, logprobs: tuple[TokenLogprob, ...] | None = None) -> Generation:
    usage, timings = Usage(24, 3), Timings(0.012, 0.1, 1.1)
    return Generation(
        text, (5, 6, 7), "stop", HOSTILE, logprobs, None, (), None, usage, timings, CachedTokens(device=16)
    )


def published(tree: PrefixTree, text: str, *, hits: int = 0, salt: str = "") -> None:
    """Cache the whole pages of a text whose characters are its tokens."""
    tokens = [ord(character) for character in text][: len(text) // tree.page_size * tree.page_size]
    found = tree.match(salt, tokens)
    tip = found[-1] if found else tree.root(salt)
    tree.lock(tip)
    more = tokens[len(found) * tree.page_size :]
    tip, _ = tree.publish(tip, more, range(tree.nodes, tree.nodes + len(more) // tree.page_size))
    for _ in range(hits):
        tree.hit(tip)
    tree.unlock(tip)


def viewed(tree: PrefixTree) -> CacheView:
    def text_of(tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    return view([tree], 1000, text_of).with_texts(text_of)


@given(st.text(st.characters()))
def test_text_stays_text_and_is_well_formed_xml_too(text: str) -> None:
    escaped = markup.visible(text)
    escaped.encode()
    root = ElementTree.fromstring(f'<a b="{escaped}">{escaped}</a>')
    assert root.text == Page(f"<b>{escaped}</b>").text or not text
    assert "<" not in escaped
    assert '"' not in escaped


def test_hostile_text_is_shown_as_it_is_and_what_is_unseen_is_spelled_out() -> None:
    tokens = (scored(HOSTILE, top=(scored(HOSTILE, rank=1),)),)
    page = shown(replace(generation(HOSTILE, tokens), prompt_logprobs=(None, *tokens)))
    assert page.text.count(SPELLED[:40]) >= 3
    assert SPELLED in page.text
    assert any(SPELLED[:40] in title for title in page.titles)
    shown(Restored(1, 1, 1, 1, 1, 1.0, 1.0, {HOSTILE: (HOSTILE, HOSTILE)}))
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


def test_a_generation_says_how_it_ended_its_usage_its_timings_and_what_was_cached() -> None:
    text = shown(replace(generation("One two"), stopped_by=0)).text
    for said in ("ended: stop at end token 0, 3 tokens", "One two", "24 tokens (cached: 16 on the device)", "3 tokens"):
        assert said in text
    for said in ("queued 12 ms", "first token after 100 ms", "then per token 500 ms", "total 1.10 s"):
        assert said in text


def test_a_generation_without_text_shows_its_token_ids() -> None:
    silent = replace(generation(""), stopped_by=7)
    assert "token ids 5 6 7" in shown(silent).text
    assert "at end token 7" in shown(silent).text
    assert "token ids" not in shown(replace(silent, token_ids=())).text
    assert "token ids" not in shown(replace(silent, end_token="</s>")).text, "its text is empty"
    assert "at </s> (token 7)" in shown(replace(silent, end_token="</s>")).text
    assert "token ids" not in shown(generation("One")).text


def test_one_of_a_thing_is_not_several() -> None:
    counts = [markup.counted(count, "page") for count in (0, 1, 2, 1000)]
    assert counts == ["0 pages", "1 page", "2 pages", "1,000 pages"]
    assert [markup.counted(count, "branch", "branches") for count in (1, 2)] == ["1 branch", "2 branches"]
    assert (
        "prompt 1 tokengenerated 1 tokenqueued"
        in shown(replace(generation("One"), usage=Usage(1, 1), cached=CachedTokens())).text
    )
    assert "device: 1 token" in read(markup.shares({"device": 1}, "token")).titles
    tree = PrefixTree(PAGE)
    for number in range(MAX_RUNS + 1):
        published(tree, f"{number:04d}")
    assert "… 1 more branch\n" in f"{viewed(tree).draw().text}\n"


def test_one_token_has_no_time_per_token() -> None:
    assert Timings(0.1, 0.2, 0.2).per_token(1) is None
    assert "per token" not in shown(replace(generation("One"), token_ids=(5,))).text


@pytest.mark.parametrize("length", [markup.HEAD + 1, markup.LONGEST_PASSAGE, markup.LONGEST_PASSAGE + 1, 10**7])
def test_a_long_text_is_folded_and_one_that_is_too_long_is_cut(length: int) -> None:
    html = markup.passage("x" * length)
    page = read(html)
    assert f"{length - markup.HEAD:,} more character{'s' * (length > markup.HEAD + 1)}" in page.text
    assert page.text.count("x") == min(length, markup.LONGEST_PASSAGE)
    assert len(html) < markup.LONGEST_PASSAGE + 1500
    assert "details" not in read(markup.passage("x" * markup.HEAD)).tags


def test_a_long_text_is_folded_between_words() -> None:
    text = "lighthouse " * 200
    shown, folded = re.findall(r"<pre .*?>(.*?)</pre>", markup.passage(text), re.DOTALL)
    assert shown + folded == text
    assert shown.endswith("lighthouse ")
    assert folded.startswith("lighthouse ")
    assert f"{len(folded):,} more characters" in read(markup.passage(text)).text
    assert len(shown) <= markup.HEAD


def test_a_text_whose_tokens_are_drawn_is_shown_once() -> None:
    tokens = tuple(TokenLogprob(7, text, -0.5, 1, (), text.encode()) for text in ("One", " two", "</s>"))
    assert shown(generation("One two", tokens)).text.count("One two") == 1
    assert shown(generation("One", tokens)).text.count("One two") == 1
    spaced = (replace(tokens[0], text=" One", bytes=b" One"), *tokens[1:])
    assert shown(generation("One two", spaced)).text.count("One two") == 1, "many tokenizers drop the first space"
    assert shown(generation("One two three", tokens)).text.count("One two") == 2, "the tokens are not all of it"


def test_a_text_whose_tokens_are_not_all_drawn_is_shown_besides() -> None:
    many = (TokenLogprob(7, "a ", -0.5, 1, (), b"a "),) * (MOST_TOKENS + 1)
    long = (TokenLogprob(7, "x" * (LONGEST_TOKEN + 1), -0.5, 1, (), b"x" * (LONGEST_TOKEN + 1)),)
    for tokens in (many, long):
        text = b"".join(token.bytes for token in tokens).decode()
        assert text in shown(generation(text, tokens)).text


def test_a_heat_map_says_rank_and_probability_and_marks_what_was_not_the_likeliest() -> None:
    html = heat_map([None, scored(" sure", 0.0, 1), scored(" <odd>\n", -8.0, 300, (scored(" sure", -0.1, 1),))])
    unknown, sure, odd = read(html).titles
    assert "no probability" in unknown
    assert sure == "“ sure”: 100.0%, rank 1, token 7, place 1"
    assert odd == "“ <odd>↵”: 3.4e-02%, rank 300, token 7, place 2\n  1. “ sure” 90.5%"
    assert html.count("border-bottom") == html.count("background") == 1


@pytest.mark.parametrize("logprob", [float("-inf"), -1e30, 1e-7])
def test_a_heat_map_takes_any_logprob(logprob: float) -> None:
    assert re.search(r"(100\.0|0\.0)%", read(heat_map([scored("a", logprob)])).titles[0])


def test_a_token_without_text_is_shown_by_its_id() -> None:
    assert "⟨7⟩" in read(heat_map([scored("")])).text


def test_a_heat_map_of_many_long_tokens_is_cut() -> None:
    token = scored("<" * 1000, top=(scored("<" * 1000),) * 20)
    html = heat_map([token] * 10_000)
    assert "9,600 more tokens" in read(html).text
    assert len(html) < 1_000_000
    assert len(heat_map([scored(" word", top=(scored(" other"),) * 3)] * 10_000)) < 150_000


def test_where_tokens_were_found_is_said_in_words_and_fills_a_bar() -> None:
    stats = SchedulerStats(prompt_tokens=200, device_hit_tokens=100, host_hit_tokens=50, computed_tokens=50)
    html = stats._repr_mimebundle_()["text/html"]
    page = shown(stats)
    assert "device 100 (50.0%)host 50 (25.0%)disk 0 (0.0%)computed 50 (25.0%)" in page.text
    assert sum(float(width) for width in re.findall(r"[;\"]width:([\d.]+)%", html)) == 100
    assert "by where they were found" not in shown(SchedulerStats()).text


def test_session_prefix_handle_stream_and_what_they_give_are_shown() -> None:
    with fake_session() as session:
        handle = session.submit(token_ids=[3, 1, 4], max_tokens=5, logprobs=2)
        ended = handle.result()
        assert "ended: length, 5 tokens" in shown(handle).text
        assert " ".join(map(str, ended.token_ids)) in shown(handle).text
        assert sum("rank" in title for title in shown(handle).titles) == 5
        stream = session.stream(token_ids=[3, 1, 4], max_tokens=5)
        assert "Stream" in shown(stream).text
        with session.prefix_sync(token_ids=[1, 2, 3]) as prefix:
            assert "Prefix held1 2 3tokens 3" in shown(prefix).text
        assert "Prefix released" in shown(prefix).text
        assert re.search(r"running \d+waiting \d+pages free", shown(session).text)
        assert "prompt_tokens" in shown(session.stats).text
        assert "programs" in shown(session.restored).text
        assert shown(session.cache).text.startswith("rekindle prefix cache")
    assert "Session fakethe session is closed" in shown(session).text
    assert "pre" in shown(session).tags


def test_a_handle_shows_what_came_so_far() -> None:
    handle = Handle(Submit(1, (1,), SamplingParams(logprobs=0)), lambda _: None)
    assert "waiting, 0 tokens" in shown(handle).text
    assert "queued" not in shown(handle).text
    handle.send()
    handle.record.deliver(Started(1, (5,) * 24, None, cached=CachedTokens(device=16)))
    handle.record.deliver(Text(1, HOSTILE, (7,), None, logprobs=(scored(HOSTILE),)))
    page = shown(handle)
    for said in ("running, 1 token", SPELLED, "24 tokens (cached: 16 on the device)", "queued", "first token after"):
        assert said in page.text
    assert sum("rank 2" in title for title in page.titles) == 1
    handle.record.fail(RuntimeError(f"{HOSTILE}\n{'x' * markup.HEAD}"))
    page = shown(handle)
    assert f"Handle failed after 1 token{SPELLED}" in page.text
    assert page.text.count(SPELLED[:40]) == 3, "what came, its token, and why it failed"
    assert "more characters" in page.text, "a long reason is folded"
    assert repr(handle).startswith("<rekindle.Handle failed after 1 token: </pre>")


def test_a_cancelled_handle_says_so() -> None:
    handle = Handle(Submit(1, (1,), SamplingParams()), lambda _: None)
    handle.cancel()
    assert "Handle cancelled, 0 tokens" in shown(handle).text


def test_a_prompt_is_shown_as_it_was_given() -> None:
    chat = Chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}], None, {})
    assert as_text(chat) == "user: Hi\nassistant: None"
    assert as_text(Continued("One", "Two")) == "OneTwo"
    assert as_text((1, 2)) == "1 2"


# The tree


def parsed(svg: str) -> ElementTree.Element:
    read(svg, DRAWN)
    return ElementTree.fromstring(svg)


def test_a_drawn_tree_is_xml_that_says_text_pages_tiers_hits_and_locks() -> None:
    tree = PrefixTree(PAGE)
    published(tree, f"begins{HOSTILE[:60]}", hits=2)
    published(tree, "begins otherwise", hits=3)
    tree.lock(tree.match("", [ord(letter) for letter in "begins otherwise"])[-1])
    drawing = viewed(tree).draw()
    said = "".join(parsed(drawing.svg).itertext())
    assert "1 page, 5 hits, held 1 time; on the device\nbegi" in said
    assert "3 pages, 3 hits, held 1 time; on the device\nns otherwise" in said
    assert "</pre></span></svg>" in said
    assert drawing.text.splitlines()[1:3] == [
        "`- [D] 1 page, 5 hits, held 1 time: 'begi'",
        "   |- [D] 3 pages, 3 hits, held 1 time: 'ns otherwise'",
    ]
    bundle = drawing._repr_mimebundle_()
    assert bundle["text/plain"] == repr(drawing) == drawing.text
    assert drawing.svg in bundle["text/html"]


def test_prefixes_that_begin_alike_are_labelled_from_the_word_in_which_they_differ() -> None:
    tree = PrefixTree(64)
    common = f"{'The keeper of the lighthouse wrote every day in a blue book. ':64.64}"
    prompts = [f"{common}When the ship had come: Question {number}: what did he write?" + " " * 64 for number in "1234"]
    for prompt in (*prompts, f"{common}Who?{' ' * 64}", "The cat" + " " * 64):
        published(tree, prompt, hits=1)
    seen = viewed(tree)
    assert sorted(run.text[:16].strip() for run in seen.runs) == [
        "The cat",
        "The keeper of th",
        "Who?",
        "… 1: what did he",
        "… 2: what did he",
        "… 3: what did he",
        "… 4: what did he",
    ]
    reprs = [repr(path) for path in seen.hottest]
    assert len(set(reprs)) == len(reprs) == 5
    assert all(path.label in repr(seen) for path in seen.hottest)


def test_token_ids_that_begin_alike_are_listed_from_where_they_differ() -> None:
    tree = PrefixTree(PAGE)
    for last in (5, 6):
        published(tree, "".join(map(chr, (1, 2, last, 4))))
    seen = view([tree], 1000, lambda tokens: "").with_texts(lambda tokens: "")
    assert sorted(run.text for run in seen.runs) == ["token ids … 5 4", "token ids … 6 4"]
    assert sorted(path.label for path in seen.hottest) == [
        "token ids [1, 2, 5, 4] … [5, 4]",
        "token ids [1, 2, 6, 4] … [6, 4]",
    ]


@given(st.sets(st.text("ab ", min_size=6, max_size=6), min_size=1, max_size=8))
def test_what_prefixes_share_is_the_most_that_one_shares_with_another(prefixes: set[str]) -> None:
    texts = list(prefixes)
    assert alike(texts) == [
        max((sum(takewhile(bool, map(str.__eq__, one, other))) for other in texts if other != one), default=0)
        for one in texts
    ]


@pytest.mark.parametrize(
    ("text", "shared", "start"),
    [
        ("one two three four five", 20, 19),
        ("one two three four five", 19, 19),
        ("one two three four five", 18, 18),
        ("one two three four five", LEAST_GAP, 0),
        ("x" * 99, 50, 50),
        ("a " + "x" * 99, 10, 0),
    ],
)
def test_a_label_begins_with_a_word_where_there_are_words(text: str, shared: int, start: int) -> None:
    assert label_start(text, shared) == start


def test_every_letter_of_a_tier_stands_beside_what_it_means() -> None:
    tree = PrefixTree(PAGE)
    published(tree, "aaaabbbb")
    for node in tree.next_to_offload(2):
        tree.offloaded(node, 1)
    drawing = viewed(tree).draw()
    for said in (drawing.text, "".join(parsed(drawing.svg).itertext())):
        assert "DH" in said
        assert "D: on the device, H: in host memory, S: stored on disk" in said
    assert "on the device and in host memory" in "".join(parsed(drawing.svg).itertext())
    rows = re.findall(r"<tr><td.*?>(.*?)</td>", viewed(tree)._repr_mimebundle_()["text/html"])
    assert rows == ["device", "host memory", "disk"], "no letter that nothing else uses"
    assert "D: on the device" not in viewed(PrefixTree(PAGE)).draw().text


def test_a_picture_keeps_its_text_legible_on_a_narrow_page() -> None:
    svg = parsed(viewed(PrefixTree(PAGE)).draw().svg)
    least = re.search(r"min-width:(\d+)px", svg.attrib["style"])
    assert least is not None
    assert float(svg.attrib["font-size"]) * int(least[1]) / WIDTH >= 10


def test_a_drawing_shows_its_text_where_a_page_takes_its_style_sheet_and_its_svg_away() -> None:
    """Do as JupyterLab does in a notebook that it does not trust: it leaves the words of both elements."""
    svg = "<svg><title>words</title></svg>"
    html = Drawing(svg, f"{HOSTILE}\nas text")._repr_mimebundle_()["text/html"]
    assert html.count(svg) == 1
    style, left = html.split("</style>")
    assert style.count("<") == 1, "nothing of what is drawn is in the style sheet"
    text, drawn = ElementTree.fromstring(f"<div>{left}</div>")
    assert text.text == f"{SPELLED}\nas text"
    assert "display" not in text.attrib["style"]
    assert drawn.attrib["style"].startswith("display:none;"), "unless the style sheet says otherwise"
    for element in (text, drawn):
        assert f".{element.attrib['class']}:has(" in style


def test_a_run_ends_where_its_tiers_differ_and_names_all_of_them() -> None:
    tree = PrefixTree(PAGE)
    published(tree, "aaaabbbbcccc")
    for node in tree.next_to_offload(2):
        tree.offloaded(node, 1)
    tree.evict(1)
    runs = viewed(tree).runs
    assert [(run.pages, run.letters) for run in runs] == [(1, "D"), (1, "DH"), (1, "H")]


def test_a_chain_of_any_length_is_one_run() -> None:
    tree = PrefixTree(PAGE)
    published(tree, "abcd" * 5000)
    (run,) = viewed(tree).runs
    assert run.pages == 5000
    assert run.text == "abcd" * 12 + " …"


def test_what_does_not_fit_is_counted_and_the_hottest_is_drawn() -> None:
    tree = PrefixTree(PAGE)
    for number in range(MAX_RUNS * 5):
        published(tree, f"{number:04d}", hits=number % 100)
        published(tree, f"hot!{number:04d}")
    published(tree, "hot!", hits=1000)
    seen = viewed(tree)
    assert len(seen.runs) == MAX_RUNS
    assert seen.runs[0].hits == 1000
    assert min(run.hits for run in seen.runs) == 80  # the hot one, two each with 99 to 81, and one with 80
    assert seen.runs[0].hidden == MAX_RUNS * 5
    assert seen.more_beginnings == MAX_RUNS * 5 - (MAX_RUNS - 1)
    drawing = seen.draw()
    assert f"… {MAX_RUNS * 5} more branches" in drawing.text
    assert f"… {seen.more_beginnings} more branches" in "".join(parsed(drawing.svg).itertext())


def test_a_drawing_is_small_whatever_the_texts_are() -> None:
    runs = [Run(at - 1, 0, "<\x00" * 500, 1, ("device", "host", "disk"), at, at, 1) for at in range(MAX_RUNS)]
    drawing = draw(runs, 7, HOSTILE)
    parsed(drawing.svg)
    assert len(drawing.svg) < 150_000
    assert max(map(len, drawing.text.splitlines())) < 500


def ends(element: ElementTree.Element) -> float:
    """Return where a text ends, in pixels."""
    return float(element.attrib["x"]) + CHARACTER * len(element.text or "")


def texts(svg: str) -> list[ElementTree.Element]:
    return list(parsed(svg).iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("text", ["word " * 40, "\x00\r" * 40, "\r\n" * 40], ids=["words", "unseen", "lines"])
@pytest.mark.parametrize("hits", [1, 133, 10**9])
def test_what_is_said_of_a_run_ends_in_its_box_and_its_text_before_that(text: str, hits: int) -> None:
    run = Run(-1, 1, text, 1234, ("device", "host", "disk"), hits, 12, 0)
    title, letters, shown, facts = texts(draw([run, replace(run, parent=0)], 0, "a tree").svg)[:4]
    assert facts.text == run.facts
    assert ends(facts) <= WIDTH - 4
    assert ends(shown) <= float(facts.attrib["x"]) - BAR_WIDTH
    assert float(letters.attrib["x"]) < float(shown.attrib["x"])
    assert (shown.text or "").endswith("…")


def test_salts_are_told_apart_and_not_told() -> None:
    tree = PrefixTree(PAGE)
    published(tree, "same")
    published(tree, "same", salt="secret")
    published(tree, "same", salt="other")
    drawing = viewed(tree).draw()
    assert [run.salt for run in viewed(tree).runs] == [2, 1, 0]
    assert "salt 1" in drawing.svg
    assert sorted(path.salt for path in viewed(tree).hottest) == [0, 1, 2]
    assert len({repr(path) for path in viewed(tree).hottest}) == 3
    assert "secret" not in drawing.svg + drawing.text


def test_an_empty_cache_is_drawn_too() -> None:
    drawing = viewed(PrefixTree(PAGE)).draw()
    parsed(drawing.svg)
    assert drawing.text.startswith("0 pages of 4 tokens")


def test_the_hottest_ends_are_those_that_a_walk_over_all_finds() -> None:
    tree = PrefixTree(PAGE)
    for number in range(60):
        published(tree, f"{number % 7:04d}{number % 11:04d}{number:04d}", hits=number * 37 % 5)
    ends = [node for node in tree.walk() if not node.children]
    ends.sort(key=lambda node: (-max(each.hits for each in tree.path(node)), -node.last_used))
    tokens = [tuple(token for node in tree.path(end) for token in tree.tokens_of(node)) for end in ends[:5]]
    assert [path.tokens for path in viewed(tree).hottest] == tokens


def test_the_tokens_of_one_character_are_one_span_and_a_lone_piece_is_its_bytes() -> None:
    parts = [b"a ", "é".encode()[:1], "é".encode()[1:] + "🚀".encode()[:1], "🚀".encode()[1:], b"b", "é".encode()[:1]]
    tokens = [TokenLogprob(7, part.decode(errors="backslashreplace"), -0.5, 1, (), part) for part in parts]
    spans = re.findall(r"<span title=\"(.*?)\".*?>(.*?)</span>", heat_map(tokens), re.DOTALL)
    assert [shown for _, shown in spans] == ["a ", "é🚀", "b", "\\xc3"]
    assert [len(title.splitlines()) for title, _ in spans] == [1, 3, 1, 1]
    deeper = [float(depth) for depth in re.findall(r"rgba\(240,90,30,(.*?)\)", heat_map(tokens))]
    assert deeper[1] > deeper[0] == deeper[2] == deeper[3], "it is as likely as all of its tokens together"
