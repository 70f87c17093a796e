"""on_generate=cache keeps what it generated, in a folder that it makes."""

import tempfile
import warnings
from pathlib import Path

from trainer_side import MODEL, arrow_dataset, prepared, server, states, write


def main() -> None:
    folder = prepared(Path(tempfile.mkdtemp()))

    def answer(tokens: list[int]) -> str:
        return str(write(folder / "one.safetensors", states(), tokens[0] // 100))

    with server(answer) as endpoint, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = arrow_dataset(
            folder, vllm_endpoint=endpoint, model=MODEL, on_generate="cache"
        )
        sample = dataset[1]
    text = " ".join(str(warning.message) for warning in said)
    if "No such file or directory" in text:
        raise FileNotFoundError(text)
    assert isinstance(sample, dict), text
    assert (folder / "hidden_states" / "hs_1.safetensors").is_file()


if __name__ == "__main__":
    main()
