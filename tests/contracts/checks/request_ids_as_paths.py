"""Whatever id a client gives a request, its file lies in the storage folder."""

from pathlib import Path

from stock_halves import Engine, fail

IDS = ("cmpl-a/../../escaped-0-01234567", "cmpl-b\0-0-01234567", "cmpl-" + "c" * 300)


def main() -> None:
    engine = Engine()
    connector = engine.scheduler.connector
    engine.add("plain", tokens=15)
    chosen = hasattr(connector, "allow_custom_save_path")
    outside, inside = engine.storage / "../chosen", engine.storage / "folder" / "inside"
    for request_id in IDS:
        engine.add(request_id, tokens=15)
        try:
            engine.drain()
        except Exception as error:
            fail(f"the engine ends: {error!r}")
        strange = list(engine.storage.parent.glob("escaped-*"))
        for path in strange:
            path.unlink()
        if strange:
            fail(f"written elsewhere: {strange}")
    if chosen:
        connector.allow_custom_save_path = True
        for name, path in (("outside", outside), ("inside", inside)):
            engine.add(name, tokens=15, hidden_states_path=str(path))
        engine.drain()
    for request_id, answer in engine.answers.items():
        path = Path(answer["hidden_states_path"])
        assert path.resolve().is_relative_to(engine.storage.resolve()), path
        assert engine.read(request_id)["hidden_states"].shape == (15, 2, 64)
    assert {"plain", *IDS} <= engine.answers.keys()
    assert engine.answers["plain"]["hidden_states_path"] == str(
        engine.storage / "plain.safetensors"
    )
    if chosen:
        assert engine.answers["inside"]["hidden_states_path"] == str(inside)


if __name__ == "__main__":
    main()
