"""Compilation of the model's programs, their LRU in memory and their store on disk."""
