"""The API server: our client, its watch, kubeconfig files, certificates; and the user's own kubectl."""
