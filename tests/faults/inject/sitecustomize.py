"""In the processes of a server under test, system calls fail or dawdle as a file says.

FAULTS names a JSON list of rules: {"call", "ends", "error", "delay", "short", "skip",
"every", "times"}. A rule is about calls on files whose names end in ``ends``; of those,
``skip`` pass, then each ``every``-th is hit, ``times`` in all. It raises ``error``
(an errno), or takes ``delay`` seconds longer, or writes half. Nothing of specshim is
touched: what fails is the standard library's door to the kernel.
"""

import fcntl
import json
import os
import threading
import time

_CONTROL = os.environ.get("FAULTS", "")


class _Rules:
    def __init__(self):
        self.stamp = None
        self.rules = []
        self.seen = {}
        self.hits = {}
        self.lock = threading.Lock()

    def match(self, call, path):
        try:
            stamp = os.stat(_CONTROL).st_mtime_ns
        except OSError:
            return {}
        with self.lock:
            if stamp != self.stamp:
                with open(_CONTROL) as file:
                    self.rules = json.load(file)
                self.stamp, self.seen, self.hits = stamp, {}, {}
            for index, rule in enumerate(self.rules):
                if rule["call"] != call or not path.endswith(rule["ends"]):
                    continue
                count = self.seen[index] = self.seen.get(index, 0) + 1
                count -= rule.get("skip", 0)
                hit = count > 0 and count % rule.get("every", 1) == 0
                if hit and self.hits.get(index, 0) < rule.get("times", 1 << 30):
                    self.hits[index] = self.hits.get(index, 0) + 1
                    return rule
        return {}


_RULES = _Rules()


def _named(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        return ""


def _wrapped(call, function, path_of):
    def faulty(*args, **options):
        rule = _RULES.match(call, path_of(args[0]))
        if "delay" in rule:
            time.sleep(rule["delay"])
        if "error" in rule:
            raise OSError(rule["error"], os.strerror(rule["error"]), path_of(args[0]))
        if "short" in rule and len(args[1]) > 1:
            args = (args[0], args[1][: len(args[1]) // 2], *args[2:])
        return function(*args, **options)

    return faulty


if _CONTROL:
    os.pwrite = _wrapped("pwrite", os.pwrite, _named)
    os.ftruncate = _wrapped("ftruncate", os.ftruncate, _named)
    os.rename = _wrapped("rename", os.rename, os.fspath)
    os.open = _wrapped("open", os.open, lambda path: os.fsdecode(path))
    fcntl.flock = _wrapped(
        "flock", fcntl.flock, lambda f: _named(f if isinstance(f, int) else f.fileno())
    )
