"""Images, archives and the registries that serve them."""
