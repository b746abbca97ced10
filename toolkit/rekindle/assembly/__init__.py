"""From the files of a model to an engine on its thread."""
