"""Mixers with a state: short convolutions, gated delta nets, Mamba-2."""
