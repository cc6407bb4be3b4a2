"""The client library of turnd: everything that `turn`, and any other Python client, is built on.

`connect.connect()` finds the daemon (starting it where none answers) and gives a `client.Client`;
`follow.follow()` reads a session's events from a cursor on and survives lost connections.
"""

import os

# Before gRPC is imported: its fork handlers only make noise in a process that starts others by exec (G07),
# and what its core logs about a daemon that is just starting is told by our own messages.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
