"""WHAT IS IT?  Frozen values with the names of the trade; the standard library only.

A *card* is one GPU; its *health* says whether new work may go there. A *node* has cards and offers ways to use them. A
*claim* is what a Pod asks for, whatever dialect it was written in. A *grant* is the answer: which cards of which node,
how much of each, for which container.
A *refusal* says why a claim does not go somewhere; an *invalid* says why a manifest is no claim at all.
A *tenant* is whoever shares a card on a node, with a *standing* on each; a *tenancy* is what it holds there, of a run
or of a Pod (`tenancy`). *Edits* are what a container runtime does to a container; `environment` is what
a tenant's processes find there. A *local Pod* (`localpod`) is one whose containers are processes of this machine.
"""
