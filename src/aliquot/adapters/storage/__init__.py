"""Files on disk: SQLite databases, tenants' folders, CDI specs, installed shims."""
