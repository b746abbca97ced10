"""Check the contrast of texts to their background."""

from playwright.sync_api import Locator

READABLE = 4.5
"""The least contrast of text to its background by the Web Content Accessibility Guidelines."""

CONTRASTS = """element => {
    const numbers = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4)
    // A mixed colour has parts from 0 to 1.
    const rgba = color => numbers(color).map((part, at) => color.startsWith("color(srgb") && at < 3 ? 255 * part : part)
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
"""A script to return the contrast and the words of each visible text in a cell's outputs."""


def assert_contrasts(outputs: Locator) -> None:
    """Check the outputs for texts, and each text for enough contrast to its background."""
    contrasts = outputs.evaluate(CONTRASTS)
    assert contrasts
    assert [(contrast, text) for contrast, text in contrasts if contrast < READABLE] == []
