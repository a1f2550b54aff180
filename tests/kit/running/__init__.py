"""How tests run: time limits, starved machines, privileges, clocks, logs and leaks."""
