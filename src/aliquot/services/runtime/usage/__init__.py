"""The bill (docs/usage.md): `billing` keeps it, `report` renders it for people and for Prometheus."""
