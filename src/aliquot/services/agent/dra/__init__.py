"""The agent as a DRA driver, on nodes whose owner has set the label `aliquot.dev/dra`.

driver        decides which world the node's cards belong to, and keeps plugin and slices in line with that
worlds        that decision, pure: device plugins or claims, never both
preparation   NodePrepareResources and NodeUnprepareResources: a claim becomes a tenant with CDI specs
publication   the ResourceSlices of the node
"""
