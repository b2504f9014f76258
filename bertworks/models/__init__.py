"""NETWORKS. torch and this package only."""
