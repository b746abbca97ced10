"""Formats of image files, read as far as their pixels need. Every step over a file is counted before it is decoded."""
