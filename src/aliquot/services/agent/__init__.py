"""`aliquot agent`: gives the containers of one node the cards that the scheduler chose.

kubelet -> devices -> allocation -> tenants (database, folder, page) and injection (CDI spec or mounts). On nodes
labelled for it, dra does the same by ResourceClaims. api has what the agent answers to others. It runs on every node,
so it imports neither numpy nor the board.
"""
