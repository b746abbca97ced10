"""Parts of bodies and answers for all APIs."""
