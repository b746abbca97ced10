"""Forms of calls whose arguments are tags with values, as fields of response templates."""

from typing import Final

from rekindle.formats.responses.forms.objects import CALL_BY_NAME, TemplateData


def _tagged(
    call: tuple[str, str], begin: str, key_end: str, end: str, around: tuple[str, str], *, edge: str = ""
) -> TemplateData:
    """Return the field of calls with tagged arguments, by regular expressions.

    A value ends at a closing tag before another tag or the end of the call; other closing tags belong to the value.
    Values stay text, because only the tool's schema determines their types.

    Args:
        call: the text around a call; the first one has the group `name`.
        begin: the text before the name of an argument.
        key_end: the text after it, up to the value.
        end: the closing tag.
        around: the text around the list of calls.
        edge: the text between a value and its tags.
    """
    open_calls, close_calls = around
    tag = f"{begin}[^>\n]+?{key_end}"
    call_end = rf"{call[1]}(?:\s*{close_calls})?" if close_calls else call[1]
    call_end = rf"(?:{call_end}|{close_calls})" if close_calls else call_end
    value_end = rf"{end}(?=\s*(?:{tag}|{call[1]}|{close_calls or call[1]}|\Z))"
    return {
        "open_pattern": (rf"(?:{open_calls}\s*)?" if open_calls else "") + call[0],
        "close_pattern": call_end,
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": rf"{begin}(?P<key>[^>\n]+?){key_end}{edge}(?P<value>(?:(?!\n{begin}).)*?){edge}{value_end}",
            "value_begin": tag,
            "value_end": value_end,
            "whole_pattern": rf"\s*{call_end}\s*",
        },
        "transform": CALL_BY_NAME,
    }


def _parameters(mark: str) -> TemplateData:
    """Return the field of calls with `<parameter=...>` tags, inside delimiters of the given name."""
    call = r"<function=(?P<name>[^>\n]+)>", "</function>"
    return _tagged(call, "<parameter=", ">", "</parameter>", (f"<{mark}>", f"</{mark}>"), edge=r"\n?")


PARAMETERS: Final = _parameters("tool_call")
SEED_PARAMETERS: Final = _parameters("seed:tool_call")
MINIMAX: Final = _tagged(
    (r'<invoke name="(?P<name>[^"\n]+)">', "</invoke>"),
    '<parameter name="',
    '">',
    "</parameter>",
    ("<minimax:tool_call>", "</minimax:tool_call>"),
)
DSML: Final = _tagged(
    (r'<｜DSML｜invoke name="(?P<name>[^"\n]+)">', "</｜DSML｜invoke>"),
    '<｜DSML｜parameter name="',
    r'"(?: string="(?:true|false)")?>',
    "</｜DSML｜parameter>",
    (r"<｜DSML｜(?:function|tool)_calls>", r"</｜DSML｜(?:function|tool)_calls>"),
)
"""Calls of DeepSeek V3.2 and later. A tag says whether its value is a string, as the schema does."""
_GLM_CALL: Final = (r"<tool_call>\s*(?P<name>[\w.-]+)\s*(?=<arg_key>|</tool_call>)", "</tool_call>")
GLM: Final = _tagged(_GLM_CALL, "<arg_key>", r"</arg_key>\s*<arg_value>", "</arg_value>", ("", ""))
GLM_DENSE: Final = _tagged(_GLM_CALL, "<arg_key>", "</arg_key><arg_value>", "</arg_value>", ("", ""))
"""Calls of GLM-4.7, without white space between tags."""
