"""Commands for the daemon of one machine and its runs."""
