"""Puts objects one by one into a knowledge base until it is ended: `python brain_writer.py AGENT NUMBER`."""

from __future__ import annotations

import sys
import time

from corpus import zipf

from isotherm.tasks import produce_brain


def main(agent: str, number: int) -> None:
    """Write without end; the environment names the servers."""
    namespace, texts = produce_brain.knowledge(agent), zipf(500, shortest=60, longest=60)
    for n in range(10_000_000):
        produce_brain.put(namespace, "note", content=f"{texts.text((n + 131 * number) % 500)} w{number}n{n}")
        time.sleep(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
