"""What is done in a soak to all that is around the servers: the graph, the blob store and its disk, the clock, the model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from soak_model import Mode
from soak_world import World

_JUMPS = (timedelta(seconds=5), timedelta(minutes=11), timedelta(hours=2), timedelta(days=40))


def graph_away(world: World, dice: random.Random) -> None:
    """The graph takes nothing for a while."""
    with _set(world, "graph-away"):
        time.sleep(dice.uniform(0.5, 3.0))


def jump(world: World, dice: random.Random) -> None:
    """The clock of workers and beat jumps, ahead or back, and after a while it is right again."""
    shift = dice.choice(_JUMPS) * dice.choice((-1, 1))
    with _set(world, "clock", str(shift.total_seconds())):
        time.sleep(dice.uniform(0.5, 3.0))


def lose_blobs(world: World, dice: random.Random) -> None:
    """The blob store cannot be read or written for a while: a file stands where its folder was."""
    aside = world.blobs.with_name("aside")
    if not world.blobs.is_dir():
        return
    world.blobs.rename(aside)
    world.blobs.touch()
    time.sleep(dice.uniform(0.2, 1.0))
    world.blobs.unlink()
    aside.rename(world.blobs)


def fill_disk(world: World, dice: random.Random) -> None:
    """The disk of the blob store is full for a while."""
    assert world.disk is not None
    try:
        world.disk.fill()
        time.sleep(dice.uniform(0.5, 3.0))
    finally:
        world.disk.free()


def busy_model(world: World, dice: random.Random) -> None:
    """429 to every question."""
    _model(world, "busy", dice)


def silent_model(world: World, dice: random.Random) -> None:
    """The model server accepts and does not answer."""
    _model(world, "silent", dice)


def half_replies(world: World, dice: random.Random) -> None:
    """Half of each reply."""
    _model(world, "half", dice)


def _model(world: World, mode: Mode, dice: random.Random) -> None:
    assert world.model is not None
    world.model.set(mode)
    time.sleep(dice.uniform(0.5, 3.0))
    world.model.set("well")


@contextmanager
def _set(world: World, name: str, text: str = "") -> Iterator[None]:
    world.set(name, text)
    try:
        yield
    finally:
        world.unset(name)
