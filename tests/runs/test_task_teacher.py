"""A fine-tuned model that teaches another one."""

from pathlib import Path

import numpy as np
import torch

from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.inference.predictor import Predictor
from bertworks.runs.task_teacher import TaskTeacher
from bertworks.tasks.heads import TEACHER
from tests.scenarios.test_same_probabilities import CPU, calibrated as calibrated, job_of


def test_a_student_gets_the_logits_of_the_training(
    calibrated: tuple[Path, Path], model: Path
) -> None:
    data, folder = calibrated
    description = ModelFolder(folder).task_config
    job = job_of(data, model)
    teacher = TaskTeacher(str(folder), job.description, job.model.tokenizer, CPU)
    labelled = teacher.label(job.groups, lambda text: None)
    found = torch.stack(
        [torch.as_tensor(group[0].targets[TEACHER].labels)[0] for group in labelled]
    )
    predictor = Predictor(folder, device="cpu", precision="fp32")
    outputs = np.concatenate(predictor.logits(list(job.groups))) * description.weights_temperature
    order = [description.labels.index(label) for label in job.description.labels]
    np.testing.assert_allclose(found.numpy(), outputs[:, order], atol=1e-5)
