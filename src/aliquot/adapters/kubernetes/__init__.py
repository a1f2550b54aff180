"""The API server: our client, its watch, kubeconfig files, certificates; and the user's own kubectl.

Here objects may be JSON (`JsonObject`), unless a struct of dialects/wire is named to decode into. Callers read them
into such structs before they pass them on: `read_object`, `read_pod`, `read_workload`.
"""
