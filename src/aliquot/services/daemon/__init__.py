"""What every long-running program of ours has: home and lock, control socket, HTTP, metrics, events, tasks, pace.

`requests` is the edge of the control socket: JSON becomes the structs of model/status/requests.py there.
"""
