"""Whether texts can be read on what is behind them."""

from playwright.sync_api import Locator

READABLE = 4.5
"""The least contrast of text to what is behind it, as the web's guidelines for accessibility have it."""

CONTRASTS = """element => {
    const rgba = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4)
    const over = ([r, g, b, a], under) => [r, g, b].map((part, at) => a * part + (1 - a) * under[at])
    const white = [255, 255, 255]
    const behind = at => at ? over(rgba(getComputedStyle(at).backgroundColor), behind(at.parentElement)) : white
    const opacity = at => at ? getComputedStyle(at).opacity * opacity(at.parentElement) : 1
    const light = color => {
        const [r, g, b] = color.map(part => part / 255).map(
            part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const contrasts = []
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
        const at = texts.currentNode.parentElement
        if (!texts.currentNode.data.trim() || !at.checkVisibility() || at.closest("title, style")) continue
        if (!at.closest(".jp-OutputArea-output")) continue
        const style = getComputedStyle(at), under = behind(at)
        const [r, g, b, a] = rgba(at.closest("svg") ? style.fill : style.color)
        const [darker, lighter] = [over([r, g, b, a * opacity(at)], under), under].map(light).sort((x, y) => x - y)
        contrasts.push([(lighter + 0.05) / (darker + 0.05), texts.currentNode.data])
    }
    return contrasts
}"""
"""Of each text that is to be seen in a cell's outputs: its contrast, and what it says."""


def assert_contrasts(shown: Locator) -> None:
    """There are texts in the outputs there, and none is too near in colour to what is behind it."""
    contrasts = shown.evaluate(CONTRASTS)
    assert contrasts
    assert [(contrast, text) for contrast, text in contrasts if contrast < READABLE] == []
