"""The state of a card: its health, and how far its hardware holds tenants to their shares."""
