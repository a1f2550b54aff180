"""Memory limits by the driver's figures: which processes are on the cards (`audit`), whose they are (`owners`), what
becomes of a tenant over its limit (`memoryquota`), and limits that the driver itself enforces (`hardlimits`)."""
