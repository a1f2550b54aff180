"""Who do we talk to: the API server, the kubelet, the driver, the operating system, the disk. IO, no decisions.

`aliquot run` loads host.home, host.control and host.process.processes before every command it starts: they import
little.
"""
