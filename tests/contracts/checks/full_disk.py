"""A write that fails leaves nothing under the sample's name; the next one is whole."""

import resource
import signal

from stock_halves import Engine, fail


def main() -> None:
    engine = Engine()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # bytes
    try:
        engine.add("cut", tokens=15)  # 7 KiB of states
        engine.step()
        engine.drain()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cut" in engine.answers
    if engine.files():
        fail(f"left behind: {engine.files()}")
    engine.add("whole", tokens=15)
    engine.step()
    engine.drain()
    assert engine.read("whole")["hidden_states"].shape == (15, 2, 64)


if __name__ == "__main__":
    main()
