"""Choice of each row's next token: adjusted logits, truncated distribution, sampled token."""
