"""The functions for each kind of array, one module a kind: functional.py chooses by the first argument.

`host_arrays`: NumPy's and others' in host memory. `gpu_arrays`: others' in a GPU's memory, through PyTorch. `torch`: tensors.
"""
