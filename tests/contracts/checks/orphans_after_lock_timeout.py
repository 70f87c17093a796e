"""What a transfer deletes is gone, also where the server was still writing it."""

import fcntl
import os
import tempfile
from pathlib import Path


def leaves_nothing(transfer_class: type) -> None:
    folder = Path(tempfile.mkdtemp())
    transfer = transfer_class(folder)
    slow, quick = folder / "slow.safetensors", folder / "quick.safetensors"
    held = os.open(f"{slow}.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        transfer.delete(str(slow))  # after a timeout: nothing is there yet
    except FileNotFoundError:
        pass
    slow.touch()  # and then the server finishes
    os.close(held)
    quick.touch()
    Path(f"{quick}.lock").touch()
    transfer.delete(str(quick))
    left = sorted(path.name for path in folder.iterdir())
    assert not left, f"left behind: {left}"


def main() -> None:
    from hs_connectors.transfer import FileTransfer

    leaves_nothing(FileTransfer)


if __name__ == "__main__":
    main()
