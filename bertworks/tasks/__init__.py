"""What a model is fine-tuned for: one class for each task."""
