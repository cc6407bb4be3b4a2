"""Sessions as clients see them: commands, requests that wait for people, and the tail that streams follow."""
