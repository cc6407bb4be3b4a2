"""The first-party provider for the files of a workspace: reading, searching, editing, and commands by the
daemon.
"""
