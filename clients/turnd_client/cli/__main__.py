"""`python -m turnd_client.cli` is `turn`."""

from turnd_client.cli import main

main()
