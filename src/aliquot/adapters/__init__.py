"""WHO DO WE TALK TO?  The doors to the world outside: files, sockets, processes, NVML, the driver. IO, no decisions.

home.py       where the daemon of this machine lives: its folders and sockets
control.py    how a command talks to the daemon: JSON lines over a unix socket
processes.py  who lives: process ids that are not mixed up with their successors
database.py   SQLite as both stores use it: on the disk when told, mended when damaged
store.py      what the daemon must know after a restart, in SQLite
keepers.py    the keepers of Pods, as processes
children.py   children that do not outlive us, and everyone who came of them
objectstore.py  the Pods and workloads that were applied to the machine
podstore.py   what the node's agent must know after a restart
cdifolder.py  the folder from which container runtimes read CDI
shims.py      the shim on the host, versions side by side
sweeping.py   what an agent leaves on its host, taken away
cgroups.py    which Pod a process is of
movein.py     the host's folders and processes, fetched into a container that was given neither
nvml.py       what the driver tells of the cards
player.py     the process that plays the simulated cards
page.py       the page that a tenant's shim and the daemon share
tenantfolder.py  the folder that page and door of a tenant are in
link.py       the messages of a tenant's shim
rm.py         the controls of NVIDIA's resource manager
cuda.py       the driver API, for the sample workload
burnkernel.py its kernel
kubelet/      the kubelet of this node: device plugins, who holds which devices
kubeconfig.py where the API server is, and who we are to it
kube.py       the Kubernetes API, as little of it as we use
reflector.py  what is in a collection of the API server, now and from now on
driverfile.py what containers need of NVIDIA's driver, where it tells
certificates.py  a certificate authority of our own, and what it signs
logs.py       logs as JSON lines

The first three are loaded by `aliquot run` before every command it starts: they import little, and stay that way.
"""
