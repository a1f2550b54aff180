"""What options of `aliquot run` allow: the command and the daemon say the same. Nothing heavy is imported here."""

PARK_ALLOWED = "0 to 24h, for example 30s"
PARK_WHOLE = "whole cards are shared with no other run: add --memory"
PARK_SEVERAL = "only the memory of runs on one card can leave it"
TOGETHER_WHOLE = PARK_WHOLE
TOGETHER_PARK = "not with --park: the memory of a group's members does not leave the card"
LATENCY_ALLOWED = "0.1ms to 10s, for example 2ms"
LATENCY_UNIT = "it needs a unit, as in 2ms: 0.1ms to 10s"
LATENCY_ONLINE = "add --class online: only online work takes the card from others"
