"""RUN FOLDERS: trainings that can be stopped and resumed."""
