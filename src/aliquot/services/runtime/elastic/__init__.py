"""Elastic memory (docs/elastic-memory.md): has tenants' memory leave the cards and return. services/mover keeps it.

parking      the thread, its rounds and what others ask of it
sightings    what the pages say of each tenant's memory, and what is remembered of it
ordering     who leaves and returns, ordered on the pages
checkpoints  tenants that only the driver's checkpoint can move
moves        the words of a page in those of the model
"""
