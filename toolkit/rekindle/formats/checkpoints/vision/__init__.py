"""Vision towers in the files of models."""
