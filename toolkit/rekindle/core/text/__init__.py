"""Text processing for a model: tokenizer, chat template, incremental decoding, stop strings, constraints."""
