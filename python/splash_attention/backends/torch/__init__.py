"""The functions on torch tensors. A call goes down: `functional` checks, `calls` chooses how PyTorch is to see it, `operators` has the
operators and what host memory takes, `cuda` the GPU's kernels, `dense` what those kernels do not take."""
