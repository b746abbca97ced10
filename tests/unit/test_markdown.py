"""Markdown of a model is drawn as Markdown, and nothing in it can run, fetch, or lead anywhere but to the web."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle import Generation
from rekindle.core import markup
from rekindle.results.markdown import render
from rekindle.testing import fake_session

TAGS = """
h1 h2 h3 h4 h5 h6 p em strong s i a code pre ul ol li blockquote hr br table thead tbody tr th td span
"""
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
    """The parts of HTML that a browser would find.

    Attributes:
        tags: each element's name and its attributes.
        addresses: those of its links.
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
        self._code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag == "code"

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")


def assert_inert(html: str) -> None:
    seen = Seen(html)
    for tag, attributes in seen.tags:
        assert tag in TAGS.split()
        match tag:
            case "a":
                assert set(attributes) == {"href", "target", "rel"}
            case "th" | "td":
                assert set(attributes.values()) <= {"text-align:left", "text-align:right", "text-align:center"}
            case "ol":
                assert set(attributes) <= {"start"}
            case _:
                assert attributes == {}
    assert all(address.lower().startswith(("http://", "https://")) for address in seen.addresses)
    assert all(text in ("$", "\\") for text in seen.texts if "$" in text or "\\" in text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_whatever_a_model_writes_is_inert(text: str) -> None:
    assert_inert(render(text))


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
        "[word](mailto:a@e.example)",
        "[word]\n\n[word]: javascript:alert(1)",
    ],
)
def test_a_link_that_does_not_lead_to_the_web_is_its_text(link: str) -> None:
    assert render(link) == "<p>word</p>\n"


def test_links_to_the_web_can_be_clicked_and_tell_nothing_of_the_page() -> None:
    said = 'target="_blank" rel="noopener noreferrer nofollow"'
    for link in ("[e](https://e.example/?a=1&b)", "[e]\n\n[e]: https://e.example/?a=1&b"):
        assert render(link) == f'<p><a href="https://e.example/?a=1&amp;b" {said}>e</a></p>\n'
    assert render("<http://e.example>") == f'<p><a href="http://e.example" {said}>http://e.example</a></p>\n'


def test_an_image_is_its_description() -> None:
    assert render("![a *cat*](https://e.example/cat.png 'x')") == "<p><i>[image: a cat]</i></p>\n"
    assert render("![](data:image/png;base64,AAAA)") == "<p><i>[image]</i></p>\n"


def test_code_stays_as_it_is() -> None:
    code = "if a < b & c:\n\tprint('$x$ \\\\(')  # [a](javascript:x) <script>"
    for block in (f"```python\n{code}\n```", "\n".join(f"    {line}" for line in code.splitlines())):
        html = render(block)
        assert html == f"<pre><code>{markup.visible(code)}\n</code></pre>\n"


def test_markdown_is_drawn() -> None:
    html = render("# A\n\n1. *b*\n2. **c** ~~d~~\n\n| e |\n|--:|\n| `f` |\n\n> g  \n> h")
    for part in ("<h1>A</h1>", "<em>b</em>", "<strong>c</strong>", "<s>d</s>", "<code>f</code>", "<blockquote>"):
        assert part in html
    assert "text-align:right" in html


def test_a_generation_is_shown_as_markdown_when_asked() -> None:
    with fake_session() as session:
        generation: Generation = session.generate_sync(token_ids=[3, 1], max_tokens=1)
    shown = replace(generation, text="**Bold** <b>").markdown()
    bundle = shown._repr_mimebundle_()
    assert str(shown) == bundle["text/plain"] == "**Bold** <b>"
    assert "<p><strong>Bold</strong> &lt;b&gt;</p>" in bundle["text/html"]
    assert set(bundle) == {"text/plain", "text/html"}
