"""README's first ten minutes, as a newcomer spends them: `make first-minutes`.

Each environment is new, made from a clone of the last commit, with a cache directory of its own. Every step runs
twice, and the second start must compile nothing.
"""
