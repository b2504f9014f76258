"""Token ids on disk to examples. Numpy only, except `batch`, where numpy becomes torch.

Everything here is a function of an address (seed, epoch, index): nothing has a state that would have to be saved.
"""
