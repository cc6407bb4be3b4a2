"""Configuration and directories of the daemon."""

from turnd.config.extensions import Hook, McpServer, Provider, Sandbox, Unconfined
from turnd.config.limits import Limits, Retry
from turnd.config.load import load
from turnd.config.models import ModelServer
from turnd.config.paths import prepare
from turnd.config.prices import Pricing
from turnd.config.problems import ConfigError, Origin
from turnd.config.profile import DoomLoop, Profile
from turnd.config.schema import Config, Telemetry
from turnd.config.secrets import Secret
from turnd.v1.paths import PathError, Paths

__all__ = [
    "Config",
    "ConfigError",
    "DoomLoop",
    "Hook",
    "Limits",
    "McpServer",
    "ModelServer",
    "Origin",
    "PathError",
    "Paths",
    "Pricing",
    "Profile",
    "Provider",
    "Retry",
    "Sandbox",
    "Secret",
    "Telemetry",
    "Unconfined",
    "load",
    "prepare",
]
