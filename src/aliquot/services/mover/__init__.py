"""The mover: a process of the node's that keeps what left the cards, in memory of the host that no tenant can map.

A tenant's shim hands over each piece of card memory as a file that the driver made (shim/mover.c). The mover maps it,
copies it to the pool or back, and answers. It holds a context on each card it was asked to serve, and the pool is
registered with the driver: that is why moves run at the speed of the bus. It outlives the daemon; what it keeps
outlives it as well, in files on a tmpfs, and the next mover goes on with them.

    pool.py     which part of the pool holds which piece; pure
    store.py    the pool's memory and what is written down about it
    cuda.py     the few calls of the driver that copy pieces
    wire.py     messages of shim/abi.h
    service.py  connections of shims: one per process and card
    control.py  messages of the daemon
    client.py   the daemon's side: starts the mover, hands it connections
    main.py     the process
"""
