"""Data files that come inside wheels: found by the wheel's own list of files, checked, and never imported."""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from isotherm.pipeline.errors import RejectedError

EXTRA = "isotherm[local-models]"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file of an installed distribution.

    Args: distribution, version: the wheel that holds it; name: end of its path; sha256: hexadecimal.
    """

    distribution: str
    version: str
    name: str
    sha256: str

    def read(self) -> bytes:
        """Return the file's bytes.

        Raises: RejectedError when the wheel is not installed, has no such file, or the file is another one.
        """
        path = self._path()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RejectedError(f"{self.name} of {self.distribution} cannot be read: install {EXTRA} again") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise RejectedError(f"{self.name} of {self.distribution} is not that of version {self.version}: {EXTRA}")
        return content

    def _path(self) -> Path:
        try:
            files = metadata.files(self.distribution) or []
        except metadata.PackageNotFoundError:
            raise RejectedError(f"{self.distribution} is not installed: install {EXTRA}") from None
        for file in files:
            if file.as_posix().endswith(self.name):
                return Path(str(file.locate()))
        raise RejectedError(f"{self.distribution} has no {self.name}: install {EXTRA}, version {self.version}")
