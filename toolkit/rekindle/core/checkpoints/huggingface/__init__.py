"""Reading a model directory of the Hugging Face format."""
