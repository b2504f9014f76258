"""LABELLED FILES -> TYPED ROWS.

No tokens, no torch.
"""
