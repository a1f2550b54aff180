"""Elastic memory (docs/elastic-memory.md): has tenants' memory leave the cards and return. services/mover keeps it.

parking    the thread, its rounds and what others ask of it
sightings  what the pages say of each tenant's memory, and what is remembered of it
permits    who was ordered to leave, for the mover
ordering   who leaves and returns, ordered on the pages
moves      the words of a page in those of the model
"""
