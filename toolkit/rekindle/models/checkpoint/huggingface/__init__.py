"""A model directory as Hugging Face lays it out."""
