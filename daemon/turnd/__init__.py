"""turnd: a daemon that owns AI agent sessions on a workstation."""
