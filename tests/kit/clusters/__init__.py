"""A cluster around the scheduler and the commands: API servers, kubectl, watches, binds and evictions."""
