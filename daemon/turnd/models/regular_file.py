"""Opens what must be a file: a FIFO would make the daemon wait, and a device or a directory means nothing."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """Opens a regular file for reading, without waiting. Raises OSError, whose `strerror` says why not."""
    if "\0" in path:
        raise OSError(errno.EINVAL, "the path holds a NUL character")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")
