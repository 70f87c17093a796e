"""A served sample with NaN is skipped, and the run goes on."""

import tempfile
import warnings
from pathlib import Path

from trainer_side import MODEL, arrow_dataset, prepared, server, states, write


def main() -> None:
    warnings.simplefilter("ignore")
    folder = prepared(Path(tempfile.mkdtemp()))

    def answer(tokens: list[int]) -> str:
        hidden = states()
        if tokens[0] == 0:
            hidden[5] = float("nan")
        return str(write(folder / "one.safetensors", hidden, tokens[0] // 100))

    with server(answer) as endpoint:
        dataset = arrow_dataset(folder, vllm_endpoint=endpoint, model=MODEL)
        assert not isinstance(dataset[0], dict)
        assert isinstance(dataset[1], dict)


if __name__ == "__main__":
    main()
