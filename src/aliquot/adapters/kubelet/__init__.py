"""The kubelet of this node: our device plugins, and which Pods hold devices.

channel.py        gRPC over the kubelet's unix sockets
deviceplugin.py   the device plugin API: one server per resource, on a socket in the kubelet's folder
podresources.py   which container holds which devices
checkpoint.py     the same from the kubelet's own file, which also has Pod UIDs and init containers
holders.py        both of these, at their paths

`make protos` generates the `_pb2` modules from the `.proto` files.
"""
