"""The event log on disk: one SQLite file, one writer, any number of readers."""
