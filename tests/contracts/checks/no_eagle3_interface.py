"""The last of Gemma 3's layers is what the first output token follows from."""

from extracting_llm import extract, predicted


def main() -> None:
    weights, samples = extract("gemma3", [0, 4, 8])
    for states, token in samples:
        assert predicted(weights, states[-1, 2], gemma=True) == token


if __name__ == "__main__":
    main()
