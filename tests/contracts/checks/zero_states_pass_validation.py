"""A served sample with a row of zeros must not reach the trainer."""

import logging
import tempfile
import warnings
from pathlib import Path

from trainer_side import MODEL, arrow_dataset, prepared, server, states, write


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()))
    served = folder / "served" / "one.safetensors"
    said = []
    warnings.showwarning = lambda message, *rest, **more: said.append(str(message))
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)

    def answer(tokens: list[int]) -> str:
        hidden = states()
        if tokens[0] == 0:
            hidden[5:9] = 0
        return str(write(served, hidden, tokens[0] // 100))

    with server(answer) as endpoint:
        dataset = arrow_dataset(folder, vllm_endpoint=endpoint, model=MODEL)
        assert isinstance(dataset[1], dict)
        assert not isinstance(dataset[0], dict), "zeros were taken for a sample"
    sentence = "row 5 (token 5) and 3 more of 24 are all zero in every layer"
    assert any(sentence in text for text in said), said


if __name__ == "__main__":
    main()
