"""How the next token of each row is chosen: its logits changed, its distribution cut, and one token drawn."""
