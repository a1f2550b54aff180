"""`aliquot agent`: gives the containers of one node the cards that the scheduler chose.

kubelet -> deviceplugins -> allocation -> tenants (database, folder, page) and injection (CDI spec or mounts). It runs
on every node, so it imports neither numpy nor the board.
"""
