"""Triton kernels for batched ablations, each beside its torch reference, and the measured choice between them.

There is one operation per file: `select_project`, `suffix_attention`, `packed_attention`, `logit_difference`.
`choice.Operations` runs the implementation that was fastest on the device. Imports from this package need neither Triton nor a
GPU.
"""
