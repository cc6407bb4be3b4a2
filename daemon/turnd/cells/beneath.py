"""Opening paths that an untrusted program may have made: never out of a directory, never where a link leads."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_beneath(directory: int, path: str, flags: int = os.O_PATH) -> int:
    """Opens `path` relative to a directory's descriptor; the caller closes what is returned.

    Raises OSError: ELOOP where any part of the path is a symbolic link, EXDEV where it leads out of the
    directory.
    """
    return _open(directory, path, flags, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)


def open_within(directory: int, path: str, flags: int = os.O_PATH) -> int:
    """As `open_beneath`, but through the symbolic links that stay in the directory."""
    return _open(directory, path, flags, _BENEATH | _NO_MAGICLINKS)


def open_exact(path: str) -> int:
    """Opens the directory that has this very path: absolute, without symbolic links in any part of it.

    The caller closes the descriptor. Raises OSError: ELOOP where a link has been put anywhere in the path,
    ENOTDIR where it is no directory.
    """
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(root, path.lstrip("/"), os.O_PATH | os.O_DIRECTORY)
    finally:
        os.close(root)


def _open(directory: int, path: str, flags: int, resolve: int) -> int:
    if "\0" in path:
        raise OSError(errno.EINVAL, "a path cannot hold a NUL character", path)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(path) or b"."),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return descriptor


def identity(descriptor: int) -> tuple[int, int]:
    """Device and inode: two descriptors with the same pair are the same file."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def identity_beneath(directory: int, path: str) -> tuple[int, int]:
    """The identity of a path below a directory, opened as `open_beneath` does. Raises OSError."""
    descriptor = open_beneath(directory, path)
    try:
        return identity(descriptor)
    finally:
        os.close(descriptor)
