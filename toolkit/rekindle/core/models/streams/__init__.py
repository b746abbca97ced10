"""Several residual streams with one computation, and a learned summand beside attention (Gemma 3n)."""
