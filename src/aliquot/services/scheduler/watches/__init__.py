"""What the scheduler watches at the API server: `following` runs the reflectors and knows when we may answer, `sinks`
puts what they report into the cluster, `resourceslices` finds the nodes whose cards a DRA driver hands out."""
