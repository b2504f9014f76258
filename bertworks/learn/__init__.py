"""What is asked of a network, and how it learns."""
