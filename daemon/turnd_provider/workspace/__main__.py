"""`python -m turnd_provider.workspace`: serves the workspace's tools."""

from turnd_provider.server import serve
from turnd_provider.workspace import commands, editing, reading, search
from turnd_provider.workspace.provider import provider

# Importing a module declares its tools to the provider.
DECLARING = (commands, editing, reading, search)

if __name__ == "__main__":
    serve(provider)
