"""A file that the server holds its lock on is not read before it is complete."""

import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path

import torch
from trainer_side import MODEL, arrow_dataset, prepared, server, states, write


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()))
    path = folder / "one.safetensors"

    def finish(descriptor: int, row: int) -> None:
        time.sleep(1)
        write(path, states(), row)
        os.close(descriptor)

    def answer(tokens: list[int]) -> str:
        descriptor = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        threading.Thread(target=finish, args=(descriptor, tokens[0] // 100)).start()
        return str(path)

    with server(answer) as endpoint:
        dataset = arrow_dataset(folder, vllm_endpoint=endpoint, model=MODEL)
        sample = dataset[1]
    assert torch.equal(sample["verifier_last_hidden_states"], states()[:, -1])
    assert not list(folder.glob("one.safetensors*"))


if __name__ == "__main__":
    main()
