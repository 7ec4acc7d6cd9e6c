"""Optimised suffixes (S2): tokens found by gradient on a local model, for the placeholder policy of the codeword alone."""
