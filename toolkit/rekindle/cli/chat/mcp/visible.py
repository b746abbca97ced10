"""Text of servers and models for a person's decision, in which everything is seen."""


def visible(text: str) -> str:
    """Return a text with escapes: for control characters, marks of direction, and other characters nobody sees.

    A terminal would obey some: to write the clipboard, to move the cursor, to show text in another order.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return "→" if character == "\t" else character.encode("unicode_escape", "surrogatepass").decode("ascii")
