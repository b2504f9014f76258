"""Run as the command line in test_lost_processes.py: each training step takes a little longer, on
any machine, so that there is time to kill processes. So does what it starts."""

import os
import time
from typing import Any

import bertworks.runs.launch
import bertworks.runs.run_folder
import bertworks.runs.training_run
from bertworks.cli.main import run
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.training.objectives import PretrainingModel

if __name__ == "__main__":
    forward, seconds = PretrainingModel.forward, float(os.environ.get("SECONDS_PER_STEP", "0"))

    def slow_forward(self: PretrainingModel, batch: Any) -> Any:
        time.sleep(seconds * self.training)
        return forward(self, batch)

    PretrainingModel.forward = slow_forward  # type: ignore[method-assign]
    bertworks.runs.training_run.measure_matmul = lambda *_: 1e11  # type: ignore[attr-defined]
    bertworks.runs.run_folder.STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "600"))
    evaluate, wait = PretrainJob.evaluate, float(os.environ.get("SECONDS_PER_EVALUATION", "0"))

    def slow_evaluate(self: PretrainJob, model: PretrainingModel) -> dict[str, float]:
        time.sleep(wait)
        return evaluate(self, model)

    PretrainJob.evaluate = slow_evaluate  # type: ignore[method-assign]
    bertworks.runs.launch.MODULE = "tests.support.slow_training"
    run()
