"""Holds tenants to their shares on the cards of one node, for the agent and for the daemon of one machine.

    arbiterd    runs all of it: one thread serves the tenants' sockets, one runs per card, one compares with NVML
    processes/  registers tenants' processes; slice, pause and resume of their contexts
    together/   groups that share a card in space, through an MPS server
    cards/      one loop per card, and the proof that its control has an effect; health, load and trace of the cards
    limits/     memory limits by the driver's figures; unknown processes
    elastic/    memory that leaves the cards and returns
    usage/      the bill: who used how much of which card
    standings   how tenants stand, for the status

A folder imports only folders listed before it; arbiterd imports them all. The decisions are in `arbiter`.
"""
