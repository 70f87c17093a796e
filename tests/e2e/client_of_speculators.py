"""Runs in a speculators environment: its own client asks, then waits for the lock.

Standard input: {"url", "model", "prompts"}; prints the path of each file, complete.
"""

import json
import os
import sys

import openai
from speculators.data_generation.vllm_client import (
    generate_hidden_states,
    wait_for_lock,
)


def main() -> None:
    job = json.load(sys.stdin)
    client = openai.Client(base_url=job["url"], api_key="none")
    for prompt in job["prompts"]:
        path = generate_hidden_states(client, job["model"], {"input_ids": prompt})
        if os.path.exists(f"{path}.lock"):
            wait_for_lock(f"{path}.lock")
        print(path)


if __name__ == "__main__":
    main()
