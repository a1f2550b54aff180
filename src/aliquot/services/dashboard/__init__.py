"""What both dashboards share: HTTP and server-sent events, access, history, the contract between page and server."""
