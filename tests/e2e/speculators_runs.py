"""Runs commands of speculators one after another in this process, on the CPU.

A process of speculators takes half a minute of a core to import. Reads JSON from
stdin: ``examples`` (the folder with train.py) and ``runs``, each with ``name`` and
``argv`` as after ``speculators``. Prints ``RESULT`` and JSON: by name, the validation
loss of each epoch of a training run, and the error that it ended with, or null.
"""

import json
import sys
import warnings

JOB = json.loads(sys.stdin.read()) if __name__ == "__main__" else {}
sys.path[:0] = [JOB["examples"]] if JOB else []

if JOB:
    import train  # examples/train.py: specshim, then speculators
    from speculators.cli import app
    from speculators.train import cli

    losses: list[float] = []

    class Recorded(train.OnCpu):
        """The example's trainer; what it finds after each epoch is kept."""

        def val_epoch(self, epoch: int) -> dict[str, float]:
            found = super().val_epoch(epoch)
            losses.append(found["loss_epoch"])
            return found

    def run(argv: list[str]) -> dict:
        losses.clear()
        error = None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                app(argv, standalone_mode=False)
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
        texts = [str(w.message) for w in said if "specshim" in str(w.filename)]
        return {"losses": list(losses), "error": error, "warnings": texts[:3]}

    train.without_gpu(Recorded)
    assert cli.Trainer is Recorded
    print("RESULT", json.dumps({job["name"]: run(job["argv"]) for job in JOB["runs"]}))
