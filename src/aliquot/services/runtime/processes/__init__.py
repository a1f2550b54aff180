"""Tenants' processes: who registers (`registration`), its channel groups (`channelgroups`), and its contexts on the
cards (`contexts`) with their time slice and pause (`contextcontrol`)."""
