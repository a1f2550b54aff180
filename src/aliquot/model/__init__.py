"""WHAT IS IT?  Frozen values with the names of the trade; msgspec structs where there are a hundred thousand of them.

A *card* is one GPU (`device`); its *health* says whether new work may go there (`cardstate`). A *node* has cards and
offers ways to use them. A *claim* is what a Pod asks for, in any dialect. A *grant* is the answer: which cards of which
node, how much of each, for which container.
A *refusal* says why a claim does not go somewhere; an *invalid* says why a manifest is no claim at all.
A *tenant* is a Pod or a run that shares a card on a node, with a *standing* on each; a *tenancy* is what it holds
there. `containers`: what a container runtime does to a container (*edits*), what a tenant's processes find there
(`environment`). `numbers`: quantities, bounds and
pauses before another attempt. `text`: what others wrote, so that it can be encoded and shown. `decoding`: JSON whose
shape others decide, and codes that grow. `status`: what programs report, as msgspec structs.
"""
