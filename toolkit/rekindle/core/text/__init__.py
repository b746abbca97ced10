"""The text of a model: its tokenizer, its chat template, incremental decoding, stop strings."""
