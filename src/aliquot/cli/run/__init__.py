"""`aliquot run`: parse, ask the daemon for a grant, exec the command. Imports nothing heavy."""
