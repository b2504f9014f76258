"""Run folders: trainings that can be stopped at any moment and typed again, what is told of them, what is judged."""
