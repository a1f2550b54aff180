"""`aliquot up`: the daemon of one machine. `aliquot run` -> control -> tenants -> queue -> placement -> runtime."""
