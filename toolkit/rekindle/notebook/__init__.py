"""What a cell shows while something happens."""
