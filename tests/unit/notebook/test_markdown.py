"""Markdown of a model is drawn as Markdown, and nothing in it can run, fetch, or lead anywhere but to the web."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle import Generation, markup
from rekindle.results.markdown import answer_html, render
from rekindle.testing import fake_session

TAGS = "p em strong s i a code pre ul ol li blockquote hr br table thead tbody tr th td span div details summary"
PARAGRAPH = "margin:0.4em 0"
FRAGMENTS = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "<!-- ", "-->", "</div>"),
    *("[a](", "![a](", "[a]: ", "[a]", "![a]", "<", ">", "(", ")", '"', "'", "`", "```", "~~~", "    ", "\n", "\n\n"),
    *("javascript:alert(1)", "java&#115;cript:alert(1)", "JAVASCRIPT&colon;alert(1)", "vbscript:x", "data:text/html,x"),
    *("http://e.example/x", "HTTPS://e.example/?a=1&b=2", "//e.example", "/api/kernels", "file:///x", '" onclick="x'),
    *("$", "$$", "&#36;", "&dollar;", "\\", "\\(", "\\[", "\\$", "\\begin{align}", "\\href{javascript:alert(1)}{x}"),
    *("# ", "- ", "1. ", "3) ", "> ", "|", "\n|-:|-|\n", "**", "*", "_", "~~", "&lt;", "&", "\x00", "\x1b", "\u202e"),
    *("text", " ", "é"),
]


class Seen(HTMLParser):
    """The parts of HTML from a browser's view.

    Attributes:
        tags: each element's name and its attributes.
        addresses: the targets of its links.
        texts: its texts outside of code, each as one node.
    """

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self._code = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.addresses += [value or "" for name, value in attrs if name == "href"]
        self._code += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")


def assert_inert(html: str) -> None:
    page = Seen(html)
    for tag, attributes in page.tags:
        assert tag in TAGS.split()
        match tag:
            case "a":
                assert set(attributes) == {"href", "target", "rel", "style"}
            case "ol":
                assert set(attributes) <= {"start"}
            case "div":
                assert set(attributes) <= {"style", "dir", "role", "aria-level"}
            case _:
                assert set(attributes) <= {"style", "dir"}
        assert "url(" not in (attributes.get("style") or "")
    assert all(address.lower().startswith(("http://", "https://", "mailto:")) for address in page.addresses)
    assert all(text in ("$", "\\") for text in page.texts if "$" in text or "\\" in text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_whatever_a_model_writes_is_inert(text: str) -> None:
    assert_inert(render(text))
    assert_inert(answer_html(text))


@pytest.mark.parametrize(
    "link",
    [
        "[word](javascript:alert(1))",
        "[word](java&#115;cript:alert(1))",
        "[word](<java\\script:alert(1)>)",
        "[word](data:text/html,x)",
        "[word](data:image/png;base64,AAAA)",
        "[word](/api/kernels)",
        "[word](//e.example)",
        "[word](#here)",
        "[word](ftp://e.example)",
        "[word](mailtox:a@e.example)",
        "[word]\n\n[word]: javascript:alert(1)",
    ],
)
def test_a_link_that_does_not_lead_to_the_web_is_its_text(link: str) -> None:
    assert Seen(render(link)).tags == [("p", {"style": PARAGRAPH})]
    assert Seen(render(link)).texts == ["word", "\n"]


def test_links_to_the_web_can_be_clicked_and_tell_nothing_of_the_page() -> None:
    attributes = 'target="_blank" rel="noopener noreferrer nofollow" style="text-decoration:underline"'
    for link in ("[e](https://e.example/?a=1&b)", "[e]\n\n[e]: https://e.example/?a=1&b"):
        assert f'<a href="https://e.example/?a=1&amp;b" {attributes}>e</a></p>\n' in render(link)
    assert f'<a href="http://e.example" {attributes}>http://e.example</a></p>\n' in render("<http://e.example>")
    assert f'<a href="mailto:a@e.example" {attributes}>e</a>' in render("[e](mailto:a@e.example)")


def test_an_image_is_its_description() -> None:
    assert "<i>[image: a cat]</i></p>" in render("![a *cat*](https://e.example/cat.png 'x')")
    assert "<i>[image]</i></p>" in render("![](data:image/png;base64,AAAA)")


class Code(HTMLParser):
    """The text of the code in HTML, and the styles of its coloured parts."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.text, self.coloured, self._inside = "", [], ""
        self.feed(html)
        self.close()

    text: str
    coloured: list[tuple[str, str]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._inside and tag == "span":
            self.coloured.append((dict(attrs)["style"] or "", ""))
        self._inside = self._inside or ("code" if tag == "code" else "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == "code" else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.text += data


@pytest.mark.parametrize("language", ["python", "html", "console", "no-such-language", "python {.x #y}", ""])
def test_code_stays_as_it_is(language: str) -> None:
    code = "\nif a < b & c:\n\tprint('$x$ \\\\(')  # [a](javascript:x) <script>\n\n"
    assert Code(render(f"```{language}\n{code}\n```")).text == f"{code}\n"
    assert Code(render("\n".join(f"    {line}" for line in code.strip().splitlines()))).text == f"{code.strip()}\n"


def test_code_of_a_known_language_is_coloured_on_light_and_dark_pages() -> None:
    html = render("```python\ndef add(a):\n    return a + 1  # sum\n```")
    coloured = Code(html).coloured
    assert len({style for style, _ in coloured}) == 4, "keywords, names, numbers and comments"
    for style, _ in coloured:
        assert style.startswith(("color:color-mix(in srgb,currentColor", "font-style:italic")), "it follows the page"
    assert "python</div>" in html
    assert Code(render("```\ndef add(a): ...\n```")).coloured == []
    assert Code(render("```python\n" + "x = 1\n" * 2000 + "```")).coloured == [], "too long"


def test_an_answer_is_rendered_only_if_it_is_formatted() -> None:
    for text in ("", "One,\ntwo", "a * b * c\n\n> well", "x_1 and y_1", "_no_"):
        assert answer_html(text) == markup.passage(text)
    for text in ("**a**", "`a`", "- a\n- b", "1. a", "# a", "```\na\n```", "|a|\n|-|\n|b|"):
        html = answer_html(text)
        assert html.startswith(f'<div dir="auto">{render(text)}</div>')
        assert html.endswith(markup.folded("as written", markup.preformatted(text)))


def test_an_answer_keeps_the_ends_of_its_lines() -> None:
    assert "One,<br>\n<strong>two</strong>" in answer_html("One,\n**two**")


def test_a_long_answer_is_folded_between_two_blocks_and_a_very_long_one_is_not_rendered() -> None:
    text = "\n\n".join(f"**{number}** " + "word " * 50 for number in range(60))
    html = answer_html(text)
    head, rest = html.split("more characters", 1)
    assert_inert(html)
    assert head.count("<strong>") + rest.count("<strong>") == 60
    assert 8 <= head.count("<strong>") <= 20
    assert "more characters" not in answer_html(text, folds=False)
    assert answer_html(f"{text}\n" * 20) == markup.passage(f"{text}\n" * 20)


def test_markdown_is_drawn() -> None:
    html = render("# A\n\n1. *b*\n2. **c** ~~d~~\n\n| e |\n|--:|\n| `f` |\n\n> g  \n> h")
    for part in (">A</div>", "<em>b</em>", "<strong>c</strong>", "<s>d</s>", ">f</code>", "<blockquote>", 'level="1"'):
        assert part in html
    assert "text-align:right" in html


def test_a_generation_is_shown_as_markdown_when_asked() -> None:
    with fake_session() as session:
        generation: Generation = session.generate_sync(token_ids=[3, 1], max_tokens=1)
    view = replace(generation, text="**Bold** <b>").markdown()
    bundle = view._repr_mimebundle_()
    assert str(view) == bundle["text/plain"] == "**Bold** <b>"
    assert "<strong>Bold</strong> &lt;b&gt;</p>" in bundle["text/html"]
    assert set(bundle) == {"text/plain", "text/html"}
    card = replace(generation, text="**Bold** <b>")._repr_mimebundle_()
    assert card["text/plain"].startswith("**Bold** <b>\n")
    assert "<strong>Bold</strong> &lt;b&gt;</p>" in card["text/html"]
