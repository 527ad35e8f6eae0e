"""Adapters for the ports. SQL lives only here. `open(settings)` gives a program its memories in process."""

from isotherm.storage.opened import Storage
from isotherm.storage.opened import close_storage as close
from isotherm.storage.opened import open_storage as open  # noqa: A004 - read as `storage.open`

__all__ = ["Storage", "close", "open"]
