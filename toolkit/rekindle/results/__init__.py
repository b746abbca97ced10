"""Results of requests: generations, batches, tool runs and scores, and their display in notebook cells."""
