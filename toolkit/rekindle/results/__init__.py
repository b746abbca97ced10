"""What a caller gets back: pieces as they come, then the whole generation, and how a cell shows both."""
