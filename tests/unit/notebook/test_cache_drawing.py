"""The drawing of a prefix cache shows the cached texts and their tiers, is small, and lets nothing leave its box."""

import re
from dataclasses import replace
from itertools import takewhile
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import BAR_WIDTH, Run, draw
from rekindle.views.cache.hottest import MAX_RUNS
from rekindle.views.cache.labels import MAX_BEGINNING, label_start, shared_lengths
from rekindle.views.cache.view import view
from rekindle.views.drawing import CHARACTER, WIDTH, Drawing
from tests.unit.cards import HOSTILE, SPELLED, picture
from tests.unit.trees import published, viewed

PAGE = 4


def test_hostile_text_stays_text_in_a_picture() -> None:
    tree = PrefixTree(PAGE)
    published(tree, f"begins{HOSTILE[:60]}")
    drawing = viewed(tree).draw()
    assert "</pre></span></svg>" in "".join(picture(drawing.svg).itertext())
    bundle = drawing._repr_mimebundle_()
    assert bundle["text/plain"] == repr(drawing) == drawing.text
    assert drawing.svg in bundle["text/html"]


def test_prefixes_that_begin_alike_are_labelled_from_the_word_in_which_they_differ() -> None:
    tree = PrefixTree(64)
    common = f"{'The keeper of the lighthouse wrote every day in a blue book. ':64.64}"
    prompts = [f"{common}When the ship had come: Question {number}: what did he write?" + " " * 64 for number in "1234"]
    for prompt in (*prompts, f"{common}Who?{' ' * 64}", "The cat" + " " * 64):
        published(tree, prompt, hits=1)
    cache_view = viewed(tree)
    assert sorted(run.text[:16].strip() for run in cache_view.runs) == [
        "The cat",
        "The keeper of th",
        "Who?",
        "… 1: what did he",
        "… 2: what did he",
        "… 3: what did he",
        "… 4: what did he",
    ]
    reprs = [repr(path) for path in cache_view.hottest]
    assert len(set(reprs)) == len(reprs) == 5
    assert all(path.label in repr(cache_view) for path in cache_view.hottest)


def test_token_ids_that_begin_alike_are_listed_from_where_they_differ() -> None:
    tree = PrefixTree(PAGE)
    for last in (5, 6):
        published(tree, "".join(map(chr, (1, 2, last, 4))))
    cache_view = view([tree], 1000, 0, lambda tokens: "").with_texts(lambda tokens: "")
    assert sorted(run.text for run in cache_view.runs) == ["token ids … 5 4", "token ids … 6 4"]
    assert sorted(path.label for path in cache_view.hottest) == [
        "token ids [1, 2, 5, 4] … [5, 4]",
        "token ids [1, 2, 6, 4] … [6, 4]",
    ]


@given(st.sets(st.text("ab ", min_size=6, max_size=6), min_size=1, max_size=8))
def test_what_prefixes_share_is_the_most_that_one_shares_with_another(prefixes: set[str]) -> None:
    texts = list(prefixes)
    assert shared_lengths(texts) == [
        max((sum(takewhile(bool, map(str.__eq__, one, other))) for other in texts if other != one), default=0)
        for one in texts
    ]


def test_a_label_begins_with_a_word_where_there_are_words() -> None:
    text = "one two three four five"
    assert [label_start(text, shared) for shared in (20, 19, 18, MAX_BEGINNING)] == [19, 19, 18, 0]
    assert (label_start("x" * 99, 50), label_start("a " + "x" * 99, 10)) == (50, 0)


def test_a_picture_keeps_its_text_legible_on_a_narrow_page() -> None:
    tree = picture(viewed(PrefixTree(PAGE)).draw().svg)
    assert float(tree.attrib["font-size"]) >= 10
    assert "viewBox" not in tree.attrib, "it is not scaled"
    scaled = picture(Drawing("A kind", "a title", 10, "", "").svg)
    least = re.search(r"min-width:(\d+)px", scaled.attrib["style"])
    assert least is not None
    assert float(scaled.attrib["font-size"]) * int(least[1]) / WIDTH >= 10


def test_a_drawing_shows_its_text_where_a_page_takes_its_style_sheet_and_its_svg_away() -> None:
    """Do as JupyterLab does in a notebook that it does not trust: it leaves the words of both elements."""
    drawing = Drawing("Kind", "a title", 10, "<title>words</title>", f"{HOSTILE}\nas text")
    html = drawing._repr_mimebundle_()["text/html"]
    assert html.count(drawing.svg) == 1
    style, rest = html.split("</style>")
    assert style.count("<") == 1, "nothing of what is drawn is in the style sheet"
    head, text, svg = ElementTree.fromstring(rest)
    assert "".join(head.itertext()) == "Kind · a title"
    assert text.text == f"{SPELLED}\nas text"
    assert "display" not in text.attrib["style"]
    assert svg.attrib["style"].startswith("display:none;"), "unless the style sheet says otherwise"
    for element in (text, svg):
        assert f".{element.attrib['class']}:has(" in style


def test_a_run_ends_where_its_tiers_differ_and_names_all_of_them() -> None:
    tree = PrefixTree(PAGE)
    published(tree, "aaaabbbbcccc")
    for node in tree.next_to_offload(2):
        tree.add_host_copy(node, 1)
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
    cache_view = viewed(tree)
    assert len(cache_view.runs) == MAX_RUNS
    assert cache_view.runs[0].hits == 1000
    assert min(run.hits for run in cache_view.runs) == 80  # the hot one, two each with 99 to 81, and one with 80
    assert cache_view.runs[0].hidden == MAX_RUNS * 5
    assert cache_view.more_beginnings == MAX_RUNS * 5 - (MAX_RUNS - 1)
    drawing = cache_view.draw()
    assert f"… {MAX_RUNS * 5} more branches" in drawing.text
    assert f"… {cache_view.more_beginnings} more branches" in "".join(picture(drawing.svg).itertext())


def test_a_drawing_is_small_whatever_the_texts_are() -> None:
    runs = [Run(at - 1, 0, "<\x00" * 500, 1, ("device", "host", "disk"), at, at, 1) for at in range(MAX_RUNS)]
    drawing = draw(runs, 7, HOSTILE)
    picture(drawing.svg)
    assert len(drawing.svg) < 150_000
    assert max(map(len, drawing.text.splitlines())) < 500


def ends(element: ElementTree.Element) -> float:
    """Return the end of a text, in pixels."""
    return float(element.attrib["x"]) + CHARACTER * len(element.text or "")


def texts(svg: str) -> list[ElementTree.Element]:
    return list(picture(svg).iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("text", ["word " * 40, "\x00\r" * 40, "\r\n" * 40], ids=["words", "unseen", "lines"])
@pytest.mark.parametrize("hits", [1, 133, 10**9])
def test_what_is_said_of_a_run_ends_in_its_box_and_its_text_before_that(text: str, hits: int) -> None:
    run = Run(-1, 1, text, 1234, ("device", "host", "disk"), hits, 12, 0)
    *legend, letters, label, facts = texts(draw([run, replace(run, parent=0)], 0, "a tree").svg)[:7]
    assert [key.text for key in legend] == ["D: device", "H: host memory", "S: disk", "bar: hits"]
    assert facts.text == run.facts
    assert ends(facts) <= -4, "from the right"
    end = 8 + BAR_WIDTH - float(facts.attrib["x"])
    assert ends(label) - end <= WIDTH + float(facts.attrib["x"]) - BAR_WIDTH
    assert float(letters.attrib["x"]) < float(label.attrib["x"])
    assert (label.text or "").endswith("…")


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


def test_the_hottest_ends_are_those_that_a_walk_over_all_finds() -> None:
    tree = PrefixTree(PAGE)
    for number in range(60):
        published(tree, f"{number % 7:04d}{number % 11:04d}{number:04d}", hits=number * 37 % 5)
    ends = [node for node in tree.walk() if not node.children]
    ends.sort(key=lambda node: (-max(each.hits for each in tree.path(node)), -node.last_used))
    tokens = [tuple(token for node in tree.path(end) for token in tree.tokens_of(node)) for end in ends[:5]]
    assert [path.tokens for path in viewed(tree).hottest] == tokens


def test_one_more_branch_is_not_several() -> None:
    tree = PrefixTree(PAGE)
    for number in range(MAX_RUNS + 1):
        published(tree, f"{number:04d}")
    assert "… 1 more branch\n" in f"{viewed(tree).draw().text}\n"
