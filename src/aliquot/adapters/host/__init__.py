"""The operating system: processes, cgroups, mounts, home folders, the control socket, logs."""
