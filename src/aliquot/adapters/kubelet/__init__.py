"""The kubelet of this node: what it is told of our cards, and what it tells of its Pods.

channel.py        how it is called: gRPC over its unix sockets
deviceplugin.py   what it asks of us: one plugin per resource, served on a socket in its folder
podresources.py   which container holds which devices
checkpoint.py     the same from its own notes, which know Pod UIDs and init containers too
books.py          both of these, at their places

The `_pb2` modules are made from the `.proto` files by `make protos`.
"""
