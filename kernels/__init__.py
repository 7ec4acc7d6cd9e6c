"""Triton kernels for batched ablations, each beside its torch reference, and the measured choice between them.

One operation a file: `select_project`, `suffix_attention`, `packed_attention`, `logit_difference`. `choice.Operations`
runs whichever implementation was fastest on the device. Importing anything here needs neither Triton nor a GPU.
"""
