"""The provider that the modules of this package declare their tools to."""

from importlib.metadata import version

from turnd_provider.provider import Provider

provider = Provider("workspace", version("turnd"))
