"""Reader of model directories in the Hugging Face format."""
