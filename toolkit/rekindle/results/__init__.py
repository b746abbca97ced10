"""Results: generations, batches, tool runs and scores, and their display in notebook cells."""
