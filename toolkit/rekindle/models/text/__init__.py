"""How a model reads and writes: its tokenizer, its chat template, text that grows, stop strings."""
