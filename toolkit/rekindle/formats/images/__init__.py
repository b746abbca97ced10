"""Pictures: their reading, their processing, and their places in prompts."""
