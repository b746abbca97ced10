"""Models with quantized weights, written as files of other programs."""
