"""Image processors with tiles: of images cut into squares of one size, beside the whole image."""
