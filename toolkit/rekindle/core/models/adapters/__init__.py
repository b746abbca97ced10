"""Adapters of a model: low-rank summands of its linear layers by row (Hu et al., 2021, arXiv:2106.09685)."""
