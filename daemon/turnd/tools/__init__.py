"""Tool providers: started in cells, spoken to over their own sockets, kept to the contract of tools.md."""
