"""Prints conversations for the tiny model, whose words are w0 to w507."""

import json
import random

CONVERSATIONS = 64

random.seed(0)
for _ in range(CONVERSATIONS):
    asked, answered = (
        " ".join(f"w{random.randrange(508)}" for _ in range(random.randrange(*range_)))
        for range_ in ((8, 16), (40, 80))
    )
    turns = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": answered},
    ]
    print(json.dumps({"conversations": turns}))
