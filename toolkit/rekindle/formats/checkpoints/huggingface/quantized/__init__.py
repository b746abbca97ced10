"""Formats of quantized safetensors: one file per format, each a function from stored tensors to quantized ones."""
