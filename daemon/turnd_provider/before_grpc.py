"""Settings that gRPC reads once, when it is imported: this module comes before any import of it."""

import os
from typing import Final

FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"
"""gRPC's handlers around fork make children of a process with a live server hang; providers only exec."""

os.environ.setdefault(FORK_SUPPORT, "0")
