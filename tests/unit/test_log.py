"""Lines of producers go where their program wants them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from isotherm.tasks.log import log

_BARE = "from isotherm.tasks.log import log; log.warning('kelp.seen', n=1)"
_STDLIB = """
import logging, sys, structlog
logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s")
structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
"""
_LATER = "from isotherm.tasks.log import log; log.warning('kelp.first')\n" + _STDLIB


@pytest.mark.parametrize(
    ("program", "on_stdout", "on_stderr"),
    [
        (_BARE, [], ["kelp.seen"]),
        (_STDLIB + _BARE, ["isotherm ", "kelp.seen"], []),
        (_LATER + _BARE, ["isotherm ", "kelp.seen"], ["kelp.first"]),
    ],
    ids=["nobody said where", "through logging", "said after the first line"],
)
def test_standard_output_is_the_programs_own(program: str, on_stdout: list[str], on_stderr: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for text, wanted in ((ran.stdout, on_stdout), (ran.stderr, on_stderr)):
        assert all(each in text for each in wanted)
        assert bool(text) == bool(wanted)


def test_lines_can_be_captured() -> None:
    with capture_logs() as lines:
        log.warning("kelp.seen", n=1)
    assert lines == [{"event": "kelp.seen", "n": 1, "log_level": "warning"}]
