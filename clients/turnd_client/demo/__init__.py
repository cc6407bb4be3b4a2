"""`turn demo`: a whole session on a sample project, with a recorded model."""
