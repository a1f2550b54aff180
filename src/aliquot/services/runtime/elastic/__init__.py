"""Elastic memory (docs/elastic-memory.md): has tenants' memory leave the cards and return (`parking`), by the driver's
checkpoint where nothing else can move it (`checkpoints`), and reads from the pages what moves (`moves`).
services/mover keeps what has left."""
