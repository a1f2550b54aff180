"""Elastic memory (docs/elastic-memory.md): has tenants' memory leave the cards and return. services/mover keeps it.

parking      the thread, its rounds and what others ask of it
sightings    what the pages say of each tenant's memory, and what is remembered of it
permits      who was ordered to leave, for the mover
ordering     who leaves and returns, ordered on the pages
checkpoints  tenants that only the driver's checkpoint can move
ability      whether it can, by the driver and by the host's memory
stepping     the processes that ask the driver, a few at a time
backoff      how often something is tried again
moves        the words of a page in those of the model
"""
